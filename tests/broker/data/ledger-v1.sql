-- A ledger as schema 1 wrote it. It is never edited: every later Sublet must open it and keep its jobs.
BEGIN;
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    live INTEGER NOT NULL,
    state TEXT NOT NULL,
    record BLOB NOT NULL
);
CREATE INDEX live_jobs ON jobs (id) WHERE live;
CREATE TABLE peaks (
    id INTEGER PRIMARY KEY,
    program TEXT NOT NULL,
    arguments TEXT NOT NULL,
    kind TEXT NOT NULL,
    start TEXT NOT NULL,
    ended REAL NOT NULL,
    ceiling INTEGER NOT NULL,
    peak INTEGER,
    system_peak INTEGER,
    exceeded INTEGER NOT NULL,
    good INTEGER NOT NULL
);
CREATE INDEX peaks_of_a_program ON peaks (program, kind, arguments, id);
INSERT INTO jobs VALUES (1, 0, 'finished', CAST('{"id":1,"token":"token-1","spec":{"name":"train.py","program":{"kind":"script","target":"L2hvbWUvc29tZW9uZS90cmFpbi5weQ==","args":["LS1lcG9jaHM=","Mw=="],"flags":[],"python":"L3Vzci9iaW4vcHl0aG9uMw=="},"surroundings":{"cwd":"L2hvbWUvc29tZW9uZQ==","environ":{"SE9NRQ==":"L2hvbWUvc29tZW9uZQ=="},"umask":18,"nice":0,"affinity":[0,1],"ignored":[],"limits":{}},"memory":{"type":"auto"},"client":{"pid":100,"start":1000},"device":null,"cpus":null,"on_oom":"fail","cold":""},"submitted":1.0,"state":{"type":"finished","at":9.5,"outcome":{"cause":"lease exceeded","code":1,"peak":419430400,"system_peak":555745280,"asked":67108864,"failures":2,"message":"OOM when allocating tensor","tenants":[{"name":"other.py","bytes":671088640,"job":2}],"waited":0.5,"startup":0.05,"ran":12.25,"tensorflow":true},"lease":{"device":"cpu","ceiling":536870912,"charge":671088640,"basis":"as asked","cpus":[]},"how":"warm"},"attempt":1,"least":0}' AS BLOB));
INSERT INTO jobs VALUES (2, 1, 'running', CAST('{"id":2,"token":"token-2","spec":{"name":"train.py","program":{"kind":"script","target":"L2hvbWUvc29tZW9uZS90cmFpbi5weQ==","args":[],"flags":[],"python":"L3Vzci9iaW4vcHl0aG9uMw=="},"surroundings":{"cwd":"L2hvbWUvc29tZW9uZQ==","environ":{"SE9NRQ==":"L2hvbWUvc29tZW9uZQ=="},"umask":18,"nice":0,"affinity":[0,1],"ignored":[],"limits":{}},"memory":{"type":"exactly","bytes":536870912},"client":{"pid":100,"start":1000},"device":null,"cpus":null,"on_oom":"fail","cold":""},"submitted":1.0,"state":{"type":"running","since":2.0,"lease":{"device":"cpu","ceiling":536870912,"charge":671088640,"basis":"as asked","cpus":[]},"waited":1.0,"tick":7.0,"keeper":{"pid":101,"start":1001},"worker":{"pid":102,"start":1002},"how":"warm","stopping":""},"attempt":1,"least":0}' AS BLOB));
INSERT INTO jobs VALUES (3, 1, 'starting', CAST('{"id":3,"token":"token-3","spec":{"name":"train.py","program":{"kind":"script","target":"L2hvbWUvc29tZW9uZS90cmFpbi5weQ==","args":[],"flags":[],"python":"L3Vzci9iaW4vcHl0aG9uMw=="},"surroundings":{"cwd":"L2hvbWUvc29tZW9uZQ==","environ":{"SE9NRQ==":"L2hvbWUvc29tZW9uZQ=="},"umask":18,"nice":0,"affinity":[0,1],"ignored":[],"limits":{}},"memory":{"type":"grow"},"client":{"pid":100,"start":1000},"device":null,"cpus":null,"on_oom":"fail","cold":""},"submitted":1.0,"state":{"type":"starting","since":3.0,"lease":{"device":"cpu","ceiling":536870912,"charge":671088640,"basis":"as asked","cpus":[0,1]},"waited":1.0,"tick":8.0},"attempt":2,"least":0}' AS BLOB));
INSERT INTO jobs VALUES (4, 1, 'waiting', CAST('{"id":4,"token":"token-4","spec":{"name":"train.py","program":{"kind":"module","target":"Y2Fm6S50cmFpbg==","args":["/wA="],"flags":["LXU="],"python":"L3Vzci9iaW4vcHl0aG9uMw=="},"surroundings":{"cwd":"L2hvbWUvc29tZW9uZQ==","environ":{"TkFNRQ==":"Y2Fm6Q=="},"umask":18,"nice":0,"affinity":[0,1],"ignored":[1],"limits":{"7":[1024,-1]}},"memory":{"type":"share","share":0.4},"client":{"pid":100,"start":1000},"device":"cpu","cpus":1,"on_oom":"grow","cold":"the interpreter option -O"},"submitted":1.0,"state":{"type":"waiting","since":4.0},"attempt":2,"least":805306368}' AS BLOB));
INSERT INTO peaks VALUES (1, 'script:/home/someone/train.py', '--epochs' || char(0) || '3', 'cpu', 'warm', 9.5, 536870912, 419430400, 555745280, 1, 0);
INSERT INTO peaks VALUES (2, 'script:/home/someone/train.py', '--epochs' || char(0) || '3', 'cpu', 'warm', 19.5, 805306368, 440401920, 576716800, 0, 1);
INSERT INTO peaks VALUES (3, 'script:/home/someone/train.py', '--epochs' || char(0) || '9', 'cpu', 'cold', 29.5, 805306368, NULL, 94371840, 0, 1);
PRAGMA user_version = 1;
COMMIT;
