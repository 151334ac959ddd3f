// The table of jobs: filters, order, groups of clusters, actions.

import { buttons, perform, possible } from "./actions.js";
import { html, setText } from "./dom.js";
import { bytes, hue, span } from "./format.js";
import { now, store } from "./store.js";

const FIRST = 200; // rows that are drawn at once
const RANKS = { running: 0, stopping: 1, starting: 2, paused: 3, waiting: 4, finished: 5 };
const FILTERS = [
  ["all", () => true],
  ["running", (row) => row.state !== "finished" && row.state !== "waiting"],
  ["waiting", (row) => row.state === "waiting"],
  ["ended", (row) => row.state === "finished"],
  ["failed", failed],
];
const COLUMNS = [
  ["job", "Job", (row) => row.id],
  ["name", "Name", (row) => row.name.toLowerCase()],
  ["state", "State", (row) => RANKS[row.state] ?? 9],
  ["device", "On", (row) => row.device ?? ""],
  ["memory", "Memory", (row) => -(row.now ?? row.lease ?? 0)],
  ["peak", "Peak", (row) => -(row.peak ?? 0)],
  ["time", "Time", (row) => -elapsed(row)],
  ["note", "Why", (row) => row.reason],
];

export function failed(row) {
  return row.state === "finished" && !row.by_user && row.cause !== "cancelled" &&
    !(row.cause === "exited" && row.exit === 0);
}

export function elapsed(row) {
  if (row.state === "finished") return row.ran ?? 0;
  return Math.max(0, now() - (row.since ?? row.submitted));
}

export function stateText(row) {
  if (row.state !== "finished") return row.state;
  if (failed(row)) return "failed";
  return row.by_user || row.cause === "cancelled" ? "cancelled" : "done";
}

export function why(row) {
  if (row.reason) return row.reason;
  if (row.state === "running") return row.basis;
  return "";
}

// What TensorFlow has taken is known only once it has started, and while it runs.
export function memoryText(row) {
  return row.now === null || row.now === undefined
    ? `lease ${bytes(row.lease)}` : `${bytes(row.now)} of ${bytes(row.lease)}`;
}

// Before it has a lease.
export function askedText(row) {
  return row.memory === "auto" ? "auto" : `asks ${row.memory}`;
}

export function memoryBar(row) {
  const bar = html("span", { class: "bar" }, html("i", {}));
  bar.style.setProperty("--hue", hue(row.id));
  bar.firstChild.style.width = `${Math.min(100, (100 * (row.now ?? 0)) / (row.lease || 1))}%`;
  return bar;
}

function byDefault(one, other) {
  const rank = (RANKS[one.state] ?? 9) - (RANKS[other.state] ?? 9);
  if (rank) return rank;
  if (one.state === "finished") return (other.since ?? 0) - (one.since ?? 0);
  return (one.gang?.[0] ?? one.id) - (other.gang?.[0] ?? other.id) || one.id - other.id;
}

export class JobTable {
  constructor() {
    this.filter = "all";
    this.order = null;
    this.reverse = false;
    this.limit = FIRST;
    this.selected = null;
    this.rows = new Map();
    this.search = html("input", {
      type: "search", placeholder: "Search jobs  ( / )", "aria-label": "Search jobs",
      oninput: () => this.draw(),
    });
    this.filters = FILTERS.map(([name]) => html("button", {
      type: "button",
      onclick: () => {
        this.filter = name;
        this.draw();
      },
    }));
    this.headers = COLUMNS.map(([key, title]) => html("th", { scope: "col", class: `c-${key}` },
      html("button", { type: "button", onclick: () => this.sort(key) }, title)));
    this.body = html("tbody", {});
    this.emptyText = html("span", {});
    this.other = html("a", { hidden: true });
    this.empty = html("p", { class: "empty" }, this.emptyText, " ", this.other);
    this.more = html("button", {
      type: "button", class: "more",
      onclick: () => {
        this.limit = Infinity;
        this.draw();
      },
    });
    this.element = html("section", { "aria-label": "Jobs" },
      html("div", { class: "toolbar" }, this.search,
        html("div", { class: "filters", role: "group", "aria-label": "Which jobs" }, this.filters)),
      html("table", { class: "jobs" },
        html("thead", {}, html("tr", {}, this.headers, html("th", { class: "c-act" }))), this.body),
      this.empty, this.more);
  }

  // Up, down, and back to the order of the queue.
  sort(key) {
    if (this.order !== key) [this.order, this.reverse] = [key, false];
    else if (!this.reverse) this.reverse = true;
    else [this.order, this.reverse] = [null, false];
    this.draw();
  }

  matching() {
    const words = this.search.value.trim().toLowerCase();
    const test = FILTERS.find(([name]) => name === this.filter)[1];
    const found = [...store.jobs.values()].filter((row) => test(row) && (!words ||
      `#${row.id} ${row.name} ${row.state} ${row.device ?? ""} ${row.reason}`.toLowerCase().includes(words)));
    if (this.order === null) return found.sort(byDefault);
    const key = COLUMNS.find(([name]) => name === this.order)[2];
    const sign = this.reverse ? -1 : 1;
    const compare = (one, other) => (one < other ? -sign : one > other ? sign : 0);
    return found.sort((one, other) => compare(key(one), key(other)) || one.id - other.id);
  }

  draw() {
    const rows = this.matching();
    const shown = rows.slice(0, this.limit);
    this.drawTools(rows);
    this.ids = shown.map((row) => row.id);
    const wanted = [];
    let gang = null;
    for (const row of shown) {
      const first = row.gang?.[0] ?? null;
      if (this.order === null && first !== null && first !== gang) wanted.push(this.gangRow(row));
      gang = first;
      wanted.push(this.jobRow(row, first !== null && this.order === null));
    }
    const kept = new Set(wanted);
    for (const child of [...this.body.children]) if (!kept.has(child)) child.remove();
    this.arrange(wanted);
    for (const id of [...this.rows.keys()]) if (!store.jobs.has(id)) this.rows.delete(id);
  }

  // Brings the rows into this order. One that has to go further down is left where it is until its turn
  // comes: otherwise all between would be moved instead of it.
  arrange(wanted) {
    let next = this.body.firstChild;
    for (const element of wanted) {
      if (next !== element && next?.nextSibling === element) next = element;
      if (next === element) next = next.nextSibling;
      else this.body.insertBefore(element, next);
    }
  }

  drawTools(rows) {
    this.filters.forEach((button, index) => {
      const [name, test] = FILTERS[index];
      setText(button, `${name} ${[...store.jobs.values()].filter(test).length}`);
      button.setAttribute("aria-pressed", this.filter === name);
    });
    this.headers.forEach((header, index) => {
      const sorted = this.order === COLUMNS[index][0];
      header.setAttribute("aria-sort", sorted ? (this.reverse ? "descending" : "ascending") : "none");
    });
    const left = rows.length - Math.min(rows.length, this.limit);
    this.more.hidden = !left;
    setText(this.more, `Show ${left} more`);
    const beyond = store.leftOut ? `${store.leftOut} more wait; \`sublet ps --all\` lists them.` : "";
    const none = store.jobs.size ? "No job matches." : "No jobs yet. Try: sublet submit train.py";
    setText(this.emptyText, rows.length ? beyond : store.broker === null ? "Loading …" : none);
    // One that ended long ago is not in the table, but it has a page.
    const number = rows.length ? null : /^#?([0-9]{1,15})$/.exec(this.search.value.trim());
    this.other.hidden = !number;
    this.other.href = number ? `#/job/${number[1]}` : "";
    setText(this.other, number ? `Look for job ${number[1]}` : "");
    this.empty.hidden = !this.emptyText.textContent;
  }

  gangRow(row) {
    const key = `gang-${row.gang[0]}-${row.state === "finished"}`;
    this.gangs ??= new Map();
    if (!this.gangs.has(key)) {
      this.gangs.set(key, html("tr", { class: "gang" }, html("td", { colspan: COLUMNS.length + 1 })));
    }
    const element = this.gangs.get(key);
    setText(element.firstChild, `Cluster #${row.gang[0]}: ${row.gang.length} tasks, which start and end together`);
    return element;
  }

  jobRow(row, inGang) {
    let known = this.rows.get(row.id);
    if (!known || known.row !== row || known.inGang !== inGang) {
      const element = this.cells(row, inGang);
      known?.element.replaceWith(element);
      known = { row, inGang, element };
      this.rows.set(row.id, known);
    }
    if (row.state !== "finished") setText(known.element.querySelector(".c-time"), span(elapsed(row)));
    known.element.classList.toggle("selected", row.id === this.selected);
    return known.element;
  }

  cells(row, inGang) {
    const text = stateText(row);
    const cell = (name, ...children) => html("td", { class: `c-${name}` }, children);
    const memory = row.lease ? [memoryBar(row), memoryText(row)] : [askedText(row)];
    return html("tr", {
      class: `state-${text}${inGang ? " task" : ""}`,
      "data-job": row.id,
      onclick: () => { location.hash = `#/job/${row.id}`; },
    },
      cell("job", html("a", { href: `#/job/${row.id}` }, `#${row.id}`)),
      cell("name", html("bdi", { title: row.name }, row.name)),
      cell("state", html("span", { class: "state" }, text)),
      cell("device", row.cards?.length ? row.cards.map((card) => card.device).join(", ") : row.device ?? ""),
      cell("memory", memory),
      cell("peak", bytes(row.peak)),
      cell("time", span(elapsed(row))),
      cell("note", html("bdi", { title: why(row) }, why(row))),
      cell("act", buttons(row)));
  }

  move(by) {
    if (!this.ids?.length) return;
    const at = this.ids.indexOf(this.selected);
    const next = at < 0 ? (by > 0 ? 0 : this.ids.length - 1) : Math.min(this.ids.length - 1, Math.max(0, at + by));
    this.selected = this.ids[next];
    this.draw();
    this.rows.get(this.selected)?.element.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const row = store.jobs.get(this.selected);
    if (event.key === "j" || event.key === "ArrowDown") this.move(1);
    else if (event.key === "k" || event.key === "ArrowUp") this.move(-1);
    else if (event.key === "/") this.search.focus();
    else if (event.key === "Enter" && row) location.hash = `#/job/${row.id}`;
    else if (event.key === "c" && row && possible(row).includes("cancel")) perform("cancel", row);
    else if (event.key === "p" && row && possible(row).length) perform(possible(row)[0], row);
    else return;
    event.preventDefault();
  }
}
