// The page of one job.

import { buttons } from "./actions.js";
import { html, setText } from "./dom.js";
import { bytes, date, span } from "./format.js";
import { askedText, elapsed, memoryBar, memoryText, stateText, why } from "./jobs.js";
import { LogView } from "./log.js";
import { DevicePlot } from "./plot.js";
import { move, rangeButtons, seconds } from "./ranges.js";
import { ScalarsView } from "./scalars.js";
import { ask, now, store } from "./store.js";

export class JobPage {
  constructor(number) {
    this.number = number;
    this.title = html("h2", {});
    this.actions = html("span", { class: "actions" });
    this.facts = html("dl", { class: "job-facts" });
    this.ranges = rangeButtons(() => this.redraw());
    this.figure = html("div", {});
    this.memory = html("section", { "aria-label": "Memory over time" },
      html("div", { class: "toolbar" }, this.ranges), this.figure);
    this.attempts = html("tbody", {});
    this.basis = html("pre", { class: "basis" });
    this.tasks = html("p", { class: "tasks" });
    this.log = new LogView(number);
    this.scalars = new ScalarsView(number);
    this.fault = html("p", { class: "empty" }, "Loading …");
    this.rest = html("div", { hidden: true },
      this.facts, this.tasks,
      this.memory, this.scalars.element, this.log.element,
      html("section", { class: "scroll" }, html("h2", {}, "Attempts"),
        html("table", {}, html("thead", {}, html("tr", {},
          ["Attempt", "Ended", "How", "Lease", "Peak", "Ran", "Output"].map((one) => html("th", { scope: "col" }, one)))),
        this.attempts)),
      html("section", {}, html("h2", {}, "What the size of its lease rests on"), this.basis));
    this.element = html("div", {},
      html("p", {}, html("a", { href: "#/" }, "← all jobs")),
      html("div", { class: "toolbar" }, this.title, this.actions), this.fault, this.rest);
    setText(this.title, `#${number}`);
    this.load();
  }

  async load() {
    try {
      this.page = await ask(`api/jobs/${this.number}`);
      if (this.closed) return;
      this.fault.hidden = true;
      this.rest.hidden = false;
      this.drawPage();
      this.draw();
    } catch (error) {
      this.fault.hidden = false;
      setText(this.fault, error.message);
    }
  }

  row() {
    return store.jobs.get(this.number) ?? this.page?.job;
  }

  drawPage() {
    setText(this.basis, this.page.explanation.slice(1).join("\n"));
    this.attempts.replaceChildren(...this.page.attempts.map((one) => html("tr", {},
      html("td", {}, one.number),
      html("td", {}, one.ended ? date(one.ended) : ""),
      html("td", {}, one.how), html("td", {}, bytes(one.lease)), html("td", {}, bytes(one.peak)),
      html("td", {}, one.ran === null || one.ran === undefined ? "" : span(one.ran)),
      html("td", {}, (one.streams ?? []).map((stream) => html("button", {
        type: "button", onclick: () => this.showAttempt(one.number, stream),
      }, stream === "both" ? "show" : stream))))));
    const tasks = this.page.tasks ?? [];
    this.tasks.replaceChildren(...(tasks.length ? ["Cluster: "] : []), ...tasks.flatMap((task, at) => [at ? ", " : "",
      html("a", { href: `#/job/${task.id}`, "aria-current": task.id === this.number ? "page" : null },
        `${task.role} ${task.role_index} (#${task.id}, ${stateText(task)})`)]));
    this.scalars.show(this.page.attempts[0].number, this.page.job.state !== "finished");
    const latest = this.page.attempts.find((one) => one.streams?.length);
    this.log.show(latest?.number, latest?.streams[0]);
  }

  showAttempt(number, stream) {
    this.log.show(number, stream);
    this.scalars.show(number, this.page.job.state !== "finished" && number === this.page.attempts[0].number);
  }

  draw() {
    const row = this.row();
    if (!row || !this.page) return;
    // An attempt that began or ended changes more than the row.
    if (row.state !== this.drawn?.state || row.attempt !== this.drawn?.attempt) {
      if (this.drawn) this.load();
      this.actions.replaceChildren(...buttons(row));
    }
    this.drawn = row;
    setText(this.title, `#${row.id} ${row.name}`);
    const facts = [
      ["State", stateText(row) + (row.how ? `, ${row.how}` : "")],
      ["Why", why(row) === stateText(row) ? "" : why(row)],
      ["Memory", row.lease ? [memoryBar(row), `${memoryText(row)}, charged ${bytes(row.charge)}`] : askedText(row)],
      ["Peak", row.peak === null || row.peak === undefined ? "" : bytes(row.peak)],
      ["Lease", row.floor && row.highest > row.floor ? `granted ${bytes(row.floor)}, grew to ${bytes(row.highest)}` : ""],
      ["On", row.cards?.length ? row.cards.map((card) => `${card.device}: ${bytes(card.now)} of ${bytes(card.lease)}`).join("; ") : row.device ?? ""],
      ["Submitted", date(row.submitted)],
      ["Time", `${row.state === "finished" ? "ran " : ""}${span(elapsed(row))}${row.time ? ` of ${span(row.time)}` : ""}`],
      ["Waited", row.waited === null || row.waited === undefined ? "" : span(row.waited)],
      ["Process", row.pid ?? ""],
      ["Priority", `${row.priority}, ${row.service}`],
    ];
    this.facts.replaceChildren(...facts.filter(([, text]) => text !== "").flatMap(([name, text]) =>
      [html("dt", {}, name), html("dd", {}, html("bdi", {}, text))]));
    if (row.device && this.plot?.device !== row.device) {
      this.plot?.close();
      this.plot = new DevicePlot(row.device, { height: 200, job: row.id });
      this.figure.replaceChildren(this.plot.element);
    }
    this.redraw();
  }

  // Since it was submitted.
  known() {
    return now() - (this.row()?.submitted ?? now());
  }

  redraw() {
    // Of what ended before the broker began, nothing is recorded.
    const row = this.row();
    this.memory.hidden = row?.state === "finished" && store.began !== null && row.since < store.began;
    this.ranges.refresh(this.known());
    this.plot?.draw(seconds(this.known()));
  }

  tick() {
    this.draw();
  }

  key(event) {
    if (event.key === "Escape") location.hash = "#/";
    if (event.key === "[" || event.key === "]") {
      move(event.key === "[" ? -1 : 1, this.known());
      this.redraw();
    }
    const verb = { c: "Cancel", p: "Pause" }[event.key];
    const button = [...this.actions.children].find((one) =>
      one.textContent === verb || (verb === "Pause" && one.textContent === "Resume"));
    button?.click();
  }

  close() {
    this.closed = true;
    this.log.close();
    this.scalars.close();
    this.plot?.close();
  }
}
