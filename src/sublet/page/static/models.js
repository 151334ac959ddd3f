// The page of models: what is served, and of the one that is chosen requests, queue, batches and latency over time.

import { html, setText } from "./dom.js";
import { bytes, span } from "./format.js";
import { number, PlotGrid } from "./lines.js";
import { move, rangeButtons, seconds } from "./ranges.js";
import { ask, now } from "./store.js";

const EVERY = 2000;
const TITLES = ["Model", "State", "On", "Memory", "Load", "Requests", "Per second", "In its queue", "Batch", "Median", "p99", "Idle"];

export function brief(time) {
  if (time === null || time === undefined) return "–";
  if (time < 0.001) return `${Math.round(time * 1e6)} µs`;
  if (time < 1) return `${Number((time * 1000).toPrecision(3))} ms`;
  return span(time);
}

const PLOTS = [
  ["Requests per second", {}, [["requests", (one) => one.requests / one.seconds]]],
  ["Latency", { format: brief }, [["p99", (one) => one.p99], ["median", (one) => one.median], ["in TensorFlow", (one) => one.computed]]],
  ["Rows in the queue, at most", {}, [["queue", (one) => one.waiting]]],
  ["Rows of a batch", {}, [["batch", (one) => one.rows / one.batches]]],
];

// The points of a line: where nothing was asked, there is nothing to draw, or nothing was done.
function points(samples, value, idle) {
  const found = [];
  let end = null;
  for (const one of samples) {
    const begin = now() - one.began;
    if (end !== null && begin - end > 1.5 * one.seconds) found.push([end, idle], [begin, idle]);
    found.push([begin + one.seconds / 2, value(one)]);
    end = begin + one.seconds;
  }
  if (end !== null && now() - end > 30) found.push([end, idle], [now(), idle]);
  return found;
}

function keyOf(row) {
  return `${row.engine}/${row.model}/${row.version}`;
}

export class ModelsPage {
  constructor() {
    this.rows = [];
    this.chosen = null;
    this.body = html("tbody", {});
    this.state = html("p", { class: "empty" }, "Loading …");
    this.ranges = rangeButtons(() => this.drawPlots());
    this.grid = new PlotGrid("pairs");
    this.title = html("h2", {});
    this.table = html("table", { class: "models", hidden: true },
      html("thead", {}, html("tr", {}, TITLES.map((title) => html("th", { scope: "col" }, title)))), this.body);
    this.detail = html("section", { "aria-label": "One model", hidden: true },
      html("div", { class: "toolbar" }, this.title, this.ranges), this.grid.element);
    this.element = html("div", {},
      html("section", { class: "scroll", "aria-label": "Models" }, html("h2", {}, "Models"), this.state, this.table), this.detail);
    this.read();
  }

  async read() {
    try {
      const { rows = [], fault = "" } = await ask("api/models");
      if (this.closed) return;
      this.show(rows, fault || (rows.length ? "" : "No models are being served. Try: sublet serve models/"));
      await this.readHistory();
    } catch (error) {
      this.show([], error.message);
    }
    if (!this.closed) this.timer = setTimeout(() => this.read(), document.hidden ? 5 * EVERY : EVERY);
  }

  async readHistory() {
    const row = this.chosenRow();
    if (!row?.engine) return;
    const query = new URLSearchParams({ engine: row.engine, model: row.model, version: row.version });
    const samples = await ask(`api/models/history?${query}`);
    if (this.closed || row !== this.chosenRow()) return;
    this.samples = samples;
    this.drawPlots();
  }

  // Until somebody chooses another, the one with the most requests.
  chosenRow() {
    const busiest = this.rows.reduce((one, other) => (one && one.requests >= other.requests ? one : other), null);
    return this.rows.find((row) => keyOf(row) === this.chosen) ?? busiest;
  }

  show(rows, text) {
    this.rows = rows;
    setText(this.state, text);
    this.state.hidden = !text;
    this.table.hidden = !rows.length;
    this.body.replaceChildren(...rows.map((row) => this.cells(row)));
    const row = this.chosenRow();
    this.detail.hidden = !row?.engine;
    setText(this.title, row ? `${row.model}, version ${row.version}` : "");
  }

  choose(row) {
    this.chosen = keyOf(row);
    this.samples = [];
    this.show(this.rows, this.state.textContent);
    this.readHistory().catch(() => {});
  }

  cells(row) {
    const cell = (...children) => html("td", {}, children);
    const chosen = row === this.chosenRow();
    return html("tr", { class: chosen ? "selected" : null, onclick: () => this.choose(row) },
      cell(html("button", { type: "button", class: "link", "aria-pressed": chosen, onclick: () => this.choose(row) },
        html("bdi", {}, row.model), ` ${row.version}`)),
      cell(html("span", { class: "state" }, row.state), row.error ? html("p", { class: "error" }, row.error) : null),
      cell(row.device), cell(bytes(row.bytes || null)), cell(row.load_seconds ? span(row.load_seconds) : "–"),
      cell(row.requests), cell(row.per_second === null ? "–" : number(row.per_second)), cell(row.waiting),
      cell(row.batch === null ? "–" : number(row.batch)), cell(brief(row.median)), cell(brief(row.p99)), cell(span(row.idle)));
  }

  // Since the first request that is remembered.
  known() {
    return this.samples?.length ? this.samples[0].began : 3600;
  }

  drawPlots() {
    this.ranges.refresh(this.known());
    const range = [now() - seconds(this.known()), now()];
    const samples = (this.samples ?? []).filter((one) => now() - one.began + one.seconds > range[0]);
    for (const [title, options, lines] of PLOTS) {
      const idle = title === "Requests per second" || title.startsWith("Rows in the queue") ? 0 : null;
      const plot = this.grid.plot(title, title, { time: true, zero: true, ...options });
      plot.show(lines.map(([name, value]) => ({ name, points: points(samples, value, idle) })), range);
    }
  }

  draw() {}

  tick() {}

  key(event) {
    const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") location.hash = "#/";
    else if (event.key === "[" || event.key === "]") {
      move(event.key === "[" ? -1 : 1, this.known());
      this.drawPlots();
    } else if (by && this.rows.length) {
      const at = this.rows.indexOf(this.chosenRow()) + by;
      this.choose(this.rows[Math.min(this.rows.length - 1, Math.max(0, at))]);
      event.preventDefault();
    }
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.grid.close();
  }
}
