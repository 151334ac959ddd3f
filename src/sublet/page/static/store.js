// What the page knows: devices, jobs, and memory over time. Kept up to date by server-sent events.

const MOST_EVENTS = 3000;
const LONGEST = 7 * 86400;
const RETRY = 2000;
const RELOAD = 600000; // milliseconds after which what has become old is loaded anew, thinned

export const store = {
  connected: false,
  broker: null, // null until something was heard
  fault: "", // why a broker that runs cannot be followed
  devices: new Map(),
  jobs: new Map(),
  leftOut: 0,
  began: null,
  usage: new Map(), // rows by device: [at, strangers, nurseries, [[job, charge, used], …]]
  events: [],
  names: new Map(),
  skew: 0, // seconds that the machine's clock is ahead of the browser's
};

const listeners = new Set();

export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function changed(what) {
  for (const listener of listeners) listener(what);
}

export function now() {
  return Date.now() / 1000 + store.skew;
}

export class Refused extends Error {}

export async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refused("The server of this page does not answer. Is `sublet ui` still running?");
  }
  if (answer.ok) return answer.json();
  if (answer.status === 401) throw new Refused(await answer.text());
  let said;
  try {
    const { message, hint } = await answer.json();
    said = hint ? `${message} ${hint}` : message;
  } catch {
    said = `The server refused: ${answer.status}.`;
  }
  throw new Refused(said);
}

// The last row that the page has may be the first of what comes: it held on.
function addUsage(usage) {
  store.began = usage.began;
  store.skew = usage.at - Date.now() / 1000;
  for (const [device, rows] of Object.entries(usage.devices)) {
    const known = store.usage.get(device) ?? [];
    const last = known.length ? known[known.length - 1][0] : -1;
    known.push(...rows.filter((row) => row[0] > last));
    const first = known.findIndex((row) => row[0] > usage.at - LONGEST);
    if (first > 0) known.splice(0, first);
    store.usage.set(device, known);
  }
  const latest = store.events.length ? store.events[store.events.length - 1].at : 0;
  store.events.push(...usage.events.filter((event) => event.at > latest));
  if (store.events.length > MOST_EVENTS) store.events.splice(0, store.events.length - MOST_EVENTS);
  for (const [job, name] of Object.entries(usage.names)) store.names.set(Number(job), name);
}

export async function loadUsage() {
  const usage = await ask("api/history");
  store.usage.clear();
  store.names.clear();
  store.events.length = 0;
  if (usage) addUsage(usage);
  changed("usage");
}

function apply(news) {
  store.broker = news.broker;
  store.fault = news.fault ?? "";
  if (news.whole) {
    store.devices.clear();
    store.jobs.clear();
  }
  for (const row of news.devices ?? []) store.devices.set(row.device.id, row);
  for (const row of news.jobs ?? []) store.jobs.set(row.id, row);
  for (const number of news.gone ?? []) store.jobs.delete(number);
  store.leftOut = news.left_out ?? 0;
  if (news.usage) addUsage(news.usage);
}

let source = null;
let failing = null;

setInterval(() => {
  if (store.connected && store.broker) loadUsage().catch(() => {});
}, RELOAD);

// Tells a page that has to sign in again from a server that is away for a moment.
async function whyGone() {
  try {
    await ask("api/history?since=99999999999");
    failing = null;
  } catch (error) {
    failing = error.message;
  }
  changed("connection");
  setTimeout(connect, RETRY);
}

export function connectionFault() {
  return failing;
}

export function connect() {
  source?.close();
  source = new EventSource("api/live");
  source.onopen = () => {
    store.connected = true;
    failing = null;
    changed("connection");
  };
  source.onmessage = (message) => {
    apply(JSON.parse(message.data));
    changed("news");
  };
  source.onerror = () => {
    store.connected = false;
    source.close();
    changed("connection");
    whyGone();
  };
  // Again after each loss: what came in between was missed. If it fails, so does the source.
  loadUsage().catch(() => {});
}
