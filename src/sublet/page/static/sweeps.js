// The pages of sweeps: the list, and one sweep with its curves, its parameters and its trials.

import { Coordinates } from "./coordinates.js";
import { html, setText } from "./dom.js";
import { date, span } from "./format.js";
import { LinePlot, number } from "./lines.js";
import { ask } from "./store.js";

const EVERY = 2000;
const FIRST = 100; // rows that are drawn at once

function progress({ counts, wanted }) {
  const states = ["running", "done", "pruned", "failed", "waiting"].filter((state) => counts[state]);
  const all = Object.values(counts).reduce((one, other) => one + other, 0);
  return `${wanted ? `${all} of ${wanted}` : all} trials${states.length ? `: ${states.map((state) => `${counts[state]} ${state}`).join(", ")}` : ""}`;
}

function stateOf(state) {
  return html("span", { class: "state" }, state);
}

// Asks again and again while the page is open.
class Polling {
  constructor() {
    this.poll();
  }

  async poll() {
    await null; // The page is complete by then.
    try {
      await this.read();
    } catch (error) {
      this.fail(error.message);
    }
    if (!this.closed) this.timer = setTimeout(() => this.poll(), document.hidden ? 5 * EVERY : EVERY);
  }

  draw() {}

  tick() {}

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}

export class SweepsPage extends Polling {
  constructor() {
    super();
    this.body = html("tbody", {});
    this.state = html("p", { class: "empty" }, "Loading …");
    const titles = ["Sweep", "State", "Trials", "Best", "Began", "Took"];
    this.table = html("table", { hidden: true },
      html("thead", {}, html("tr", {}, titles.map((title) => html("th", { scope: "col" }, title)))), this.body);
    this.element = html("section", { class: "scroll", "aria-label": "Sweeps" }, html("h2", {}, "Sweeps"), this.state, this.table);
  }

  fail(text) {
    setText(this.state, text);
    this.state.hidden = false;
  }

  async read() {
    const rows = await ask("api/sweeps");
    if (this.closed) return;
    this.fail("No sweeps yet. Try: sublet.sweep(build, space, data), or sublet sweep train.py");
    this.state.hidden = rows.length > 0;
    this.table.hidden = !rows.length;
    this.body.replaceChildren(...rows.map((row) => html("tr", { class: `state-${row.state}` },
      html("td", {}, html("a", { href: `#/sweep/${row.id}` }, html("bdi", {}, row.name))),
      html("td", {}, stateOf(row.state)), html("td", {}, progress(row)),
      html("td", {}, row.best === null ? "–" : `${row.metric} ${number(row.best)}`),
      html("td", {}, date(row.began)), html("td", {}, span(row.updated - row.began)))));
  }

  key(event) {
    if (event.key === "Escape") location.hash = "#/";
  }
}

export class SweepPage extends Polling {
  constructor(id) {
    super();
    this.id = id;
    this.seen = "";
    this.limit = FIRST;
    this.order = null;
    this.title = html("h2", {});
    this.facts = html("p", { class: "facts" });
    this.state = html("p", { class: "empty" }, "Loading …");
    this.curves = new LinePlot("", { height: 260, unit: "epoch" });
    this.coordinates = new Coordinates((trial) => this.choose(trial));
    this.head = html("tr", {});
    this.body = html("tbody", {});
    this.more = html("button", { type: "button", class: "more", onclick: () => {
      this.limit = Infinity;
      this.drawTable();
    } });
    this.rest = html("div", { hidden: true },
      html("div", { class: "plots pairs" }, this.curves.element, this.coordinates.element),
      html("section", { class: "scroll", "aria-label": "Trials" }, html("h2", {}, "Trials"),
        html("table", { class: "models trials" }, html("thead", {}, this.head), this.body), this.more));
    this.element = html("div", {}, html("p", {}, html("a", { href: "#/sweeps" }, "← all sweeps")), this.title, this.facts, this.state, this.rest);
  }

  fail(text) {
    setText(this.state, text);
    this.state.hidden = false;
  }

  async read() {
    const page = await ask(`api/sweeps/${encodeURIComponent(this.id)}?${new URLSearchParams({ seen: this.seen })}`);
    if (this.closed || !page) return;
    this.seen = page.version;
    this.page = page;
    this.state.hidden = true;
    this.rest.hidden = false;
    this.show();
  }

  chosenTrial() {
    return this.page.trials.find((trial) => trial.number === this.chosen) ?? null;
  }

  show() {
    const { sweep, search, epochs, ways, directory } = this.page;
    setText(this.title, sweep.name);
    setText(this.facts, [
      sweep.state, progress(sweep), `${sweep.mode === "min" ? "lowest" : "highest"} ${sweep.metric}`,
      `${search}, ${epochs} epochs`, ...ways, `began ${date(sweep.began)}`, directory,
    ].join(" · "));
    this.drawPlots();
    this.drawTable();
  }

  drawPlots() {
    const { sweep, parameters, trials } = this.page;
    const [best] = trials.filter((trial) => trial.value !== null);
    const chosen = this.chosenTrial();
    const name = (trial) => {
      if (trial === best) return `best, trial ${trial.number}`;
      return trial === chosen ? `trial ${trial.number}` : null;
    };
    const lines = trials.filter((trial) => trial.curve.length)
      .map((trial) => ({ name: name(trial), points: trial.curve.map((value, index) => [(index + 1) * trial.every, value]) }));
    setText(this.curves.title, sweep.metric);
    this.curves.name = sweep.metric;
    this.curves.show(lines);
    this.coordinates.show(parameters, trials, sweep.metric, chosen?.number ?? best?.number ?? null);
  }

  columns() {
    return [
      ["Trial", (trial) => trial.number], ["State", (trial) => trial.state],
      ...this.page.parameters.map((one, index) => [one.name, (trial) => trial.params[index]]),
      [this.page.sweep.metric, (trial) => trial.value], ["Epochs", (trial) => trial.epochs],
      ["Time", (trial) => trial.seconds], ["Job", (trial) => trial.job],
    ].filter(([title, of]) => title !== "Job" || this.page.trials.some((trial) => of(trial) !== null));
  }

  // Best first, or by a column: what has no value comes last.
  sorted() {
    if (this.order === null) return this.page.trials;
    const of = this.columns()[this.order]?.[1] ?? ((trial) => trial.number);
    const sign = this.reverse ? -1 : 1;
    return [...this.page.trials].sort((one, other) => {
      const [a, b] = [of(one), of(other)];
      if (a === null || b === null) return (a === null) - (b === null);
      return a < b ? -sign : a > b ? sign : one.number - other.number;
    });
  }

  sort(index) {
    if (this.order !== index) [this.order, this.reverse] = [index, false];
    else if (!this.reverse) this.reverse = true;
    else this.order = null;
    this.drawTable();
  }

  drawTable() {
    const columns = this.columns();
    this.head.replaceChildren(...columns.map(([title], index) => html("th", {
      scope: "col", "aria-sort": this.order === index ? (this.reverse ? "descending" : "ascending") : "none",
    }, html("button", { type: "button", onclick: () => this.sort(index) }, html("bdi", {}, title)))));
    const rows = this.sorted();
    this.shown = rows.slice(0, this.limit);
    this.body.replaceChildren(...this.shown.map((trial) => this.cells(trial, columns)));
    const left = rows.length - this.shown.length;
    this.more.hidden = !left && !this.page.left_out;
    this.more.disabled = !left;
    setText(this.more, left ? `Show ${left} more` : `${this.page.left_out} more are not shown`);
  }

  cells(trial, columns) {
    const text = (title, value) => {
      if (title === "State") return [stateOf(value), trial.error ? html("p", { class: "error" }, trial.error) : null];
      if (title === "Time") return span(value);
      if (title === "Job" && value !== null) return html("a", { href: `#/job/${value}` }, `#${value}`);
      if (title === "Trial") return html("button", { type: "button", class: "link", "aria-pressed": trial.number === this.chosen }, value);
      return value === null ? "–" : html("bdi", {}, typeof value === "number" ? number(value) : String(value));
    };
    return html("tr", {
      class: `state-${trial.state}${trial.number === this.chosen ? " selected" : ""}`, "data-trial": trial.number,
      onclick: () => this.choose(trial.number),
    }, columns.map(([title, of]) => html("td", {}, text(title, of(trial)))));
  }

  choose(number) {
    this.chosen = number;
    this.drawPlots();
    this.drawTable();
    this.body.querySelector(".selected")?.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") location.hash = "#/sweeps";
    else if (by && this.shown?.length) {
      const at = this.shown.findIndex((trial) => trial.number === this.chosen);
      const next = at < 0 ? 0 : Math.min(this.shown.length - 1, Math.max(0, at + by));
      this.choose(this.shown[next].number);
      event.preventDefault();
    }
  }

  close() {
    super.close();
    this.curves.close();
    this.coordinates.close();
  }
}
