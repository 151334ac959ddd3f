// The page of models: memory, queue and requests, with their last minutes.

import { html, setText, svg } from "./dom.js";
import { bytes, span } from "./format.js";
import { ask } from "./store.js";

const EVERY = 2000;
const KEPT = 150; // samples, five minutes
const WIDE = 120;
const TALL = 24;

function sparkline(values) {
  const most = Math.max(1, ...values);
  const points = values.map((value, index) =>
    `${((index / (KEPT - 1)) * WIDE).toFixed(1)},${(TALL - 2 - (value / most) * (TALL - 4)).toFixed(1)}`);
  return svg("svg", { class: "spark", viewBox: `0 0 ${WIDE} ${TALL}`, width: WIDE, height: TALL, "aria-hidden": "true" },
    svg("polyline", { points: points.join(" ") }));
}

export class ModelsPage {
  constructor() {
    this.samples = new Map();
    this.body = html("tbody", {});
    this.state = html("p", { class: "empty" }, "Loading …");
    const titles = ["Model", "Version", "State", "On", "Memory", "Load", "Requests", "Per second", "In its queue", "Idle"];
    this.table = html("table", { hidden: true },
      html("thead", {}, html("tr", {}, titles.map((title) => html("th", { scope: "col" }, title)))), this.body);
    this.element = html("section", { class: "scroll", "aria-label": "Models" }, html("h2", {}, "Models"), this.state, this.table);
    this.read();
  }

  async read() {
    try {
      const { rows = [], fault = "" } = await ask("api/models");
      if (this.closed) return;
      this.show(rows, fault || (rows.length ? "" : "No models are being served. Try: sublet serve models/"));
    } catch (error) {
      this.show([], error.message);
    }
    this.timer = setTimeout(() => this.read(), EVERY);
  }

  show(rows, text) {
    setText(this.state, text);
    this.state.hidden = !text;
    this.table.hidden = !rows.length;
    this.body.replaceChildren(...rows.map((row) => this.cells(row)));
  }

  cells(row) {
    const key = `${row.device}/${row.model}/${row.version}`;
    const known = this.samples.get(key) ?? { rates: [], queue: [] };
    this.samples.set(key, known);
    const at = performance.now();
    const rate = known.at === undefined ? 0 : Math.max(0, (row.requests - known.requests) / ((at - known.at) / 1000));
    Object.assign(known, { at, requests: row.requests });
    known.rates = [...known.rates, rate].slice(-KEPT);
    known.queue = [...known.queue, row.waiting].slice(-KEPT);
    const cell = (...children) => html("td", {}, children);
    return html("tr", {},
      cell(html("bdi", {}, row.model)), cell(row.version),
      cell(html("span", { class: "state" }, row.state), row.error ? html("p", { class: "error" }, row.error) : null),
      cell(row.device), cell(bytes(row.bytes || null)), cell(row.load_seconds ? span(row.load_seconds) : "–"),
      cell(row.requests), cell(sparkline(known.rates), ` ${rate.toFixed(1)}`),
      cell(sparkline(known.queue), ` ${row.waiting}`), cell(span(row.idle)));
  }

  draw() {}

  tick() {}

  key(event) {
    if (event.key === "Escape") location.hash = "#/";
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}
