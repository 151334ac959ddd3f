-- A ledger as schema 2 wrote it. It is never edited: every later Sublet must open it and keep its jobs.
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
    , job INTEGER NOT NULL DEFAULT 0, shape TEXT NOT NULL DEFAULT '', batch INTEGER, text TEXT NOT NULL DEFAULT '');
CREATE INDEX peaks_of_a_program ON peaks (program, kind, arguments, id);
CREATE INDEX peaks_of_a_shape ON peaks (program, kind, shape, id);
CREATE TABLE forecasts (
        id INTEGER PRIMARY KEY,
        program TEXT NOT NULL,
        arguments TEXT NOT NULL,
        kind TEXT NOT NULL,
        text TEXT NOT NULL,
        record BLOB NOT NULL,
        UNIQUE (program, arguments, kind)
    );
INSERT INTO jobs VALUES (1, 0, 'finished', CAST('{"id":1,"token":"token-1","spec":{"name":"train.py","program":{"kind":"script","target":"L2hvbWUvc29tZW9uZS90cmFpbi5weQ==","args":["LS1iYXRjaC1zaXpl","MzI="],"flags":[],"python":"L3Vzci9iaW4vcHl0aG9uMw=="},"surroundings":{"cwd":"L2hvbWUvc29tZW9uZQ==","environ":{"SE9NRQ==":"L2hvbWUvc29tZW9uZQ=="},"umask":18,"nice":0,"affinity":[0,1],"ignored":[],"limits":{}},"memory":{"type":"auto"},"client":{"pid":100,"start":1000},"device":null,"cpus":null,"on_oom":"fail","cold":""},"submitted":1.0,"state":{"type":"finished","at":9.0,"outcome":{"cause":"exited","code":0,"peak":314572800,"system_peak":440401920,"asked":null,"failures":0,"message":"","tenants":[],"waited":0.0,"startup":null,"ran":4.0,"tensorflow":false},"lease":{"device":"cpu","ceiling":536870912,"charge":671088640,"basis":"as asked","cpus":[],"tight":false,"trimmed":0},"how":"warm"},"attempt":1,"least":0}' AS BLOB));
INSERT INTO jobs VALUES (2, 1, 'running', CAST('{"id":2,"token":"token-2","spec":{"name":"train.py","program":{"kind":"script","target":"L2hvbWUvc29tZW9uZS90cmFpbi5weQ==","args":[],"flags":[],"python":"L3Vzci9iaW4vcHl0aG9uMw=="},"surroundings":{"cwd":"L2hvbWUvc29tZW9uZQ==","environ":{"SE9NRQ==":"L2hvbWUvc29tZW9uZQ=="},"umask":18,"nice":0,"affinity":[0,1],"ignored":[],"limits":{}},"memory":{"type":"auto"},"client":{"pid":100,"start":1000},"device":null,"cpus":null,"on_oom":"fail","cold":""},"submitted":1.0,"state":{"type":"running","since":2.0,"lease":{"device":"cpu","ceiling":536870912,"charge":671088640,"basis":"as asked","cpus":[],"tight":false,"trimmed":0},"waited":1.0,"tick":7.0,"keeper":{"pid":101,"start":1001},"worker":{"pid":102,"start":1002},"how":"warm","stopping":""},"attempt":1,"least":0}' AS BLOB));
INSERT INTO jobs VALUES (3, 1, 'starting', CAST('{"id":3,"token":"token-3","spec":{"name":"train.py","program":{"kind":"script","target":"L2hvbWUvc29tZW9uZS90cmFpbi5weQ==","args":[],"flags":[],"python":"L3Vzci9iaW4vcHl0aG9uMw=="},"surroundings":{"cwd":"L2hvbWUvc29tZW9uZQ==","environ":{"SE9NRQ==":"L2hvbWUvc29tZW9uZQ=="},"umask":18,"nice":0,"affinity":[0,1],"ignored":[],"limits":{}},"memory":{"type":"auto"},"client":{"pid":100,"start":1000},"device":null,"cpus":null,"on_oom":"fail","cold":""},"submitted":1.0,"state":{"type":"starting","since":4.0,"lease":{"device":"cpu","ceiling":536870912,"charge":671088640,"basis":"as asked","cpus":[],"tight":false,"trimmed":0},"waited":0.0,"tick":6.0},"attempt":2,"least":0}' AS BLOB));
INSERT INTO jobs VALUES (4, 1, 'waiting', CAST('{"id":4,"token":"token-4","spec":{"name":"train.py","program":{"kind":"script","target":"L2hvbWUvc29tZW9uZS90cmFpbi5weQ==","args":["Y2Fm6Q=="],"flags":[],"python":"L3Vzci9iaW4vcHl0aG9uMw=="},"surroundings":{"cwd":"L2hvbWUvc29tZW9uZQ==","environ":{"SE9NRQ==":"L2hvbWUvc29tZW9uZQ=="},"umask":18,"nice":0,"affinity":[0,1],"ignored":[],"limits":{}},"memory":{"type":"auto"},"client":{"pid":100,"start":1000},"device":null,"cpus":null,"on_oom":"fail","cold":""},"submitted":1.0,"state":{"type":"waiting","since":5.0},"attempt":3,"least":805306368}' AS BLOB));
INSERT INTO peaks VALUES (1, 'script:/home/someone/train.py', '--batch-size' || char(0) || '32', 'cpu', 'warm', 9.0, 536870912, 314572800, 440401920, 0, 1, 1, '--batch-size' || char(0, 0), 32, '');
INSERT INTO forecasts VALUES (1, 'script:/home/someone/train.py', '--batch-size' || char(0) || '32', 'cpu', '', CAST('{"expected":209715200,"low":157286400,"high":262144000,"points":[],"rests_on":"two steps","at":8.0,"edited":false}' AS BLOB));
PRAGMA user_version = 2;
COMMIT;
