// The learning curves of a job: the scalars that it writes for TensorBoard, while it writes them.

import { html, setText } from "./dom.js";
import { PlotGrid } from "./lines.js";
import { ask } from "./store.js";

const EVERY = 2000;
const RARELY = 15000; // once the attempt has ended, or nothing was found

export class ScalarsView {
  constructor(job) {
    this.job = job;
    this.grid = new PlotGrid();
    this.where = html("span", { class: "facts" });
    this.fault = html("p", { class: "error" });
    this.scale = html("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggle() }, "log scale");
    this.element = html("section", { "aria-label": "Learning curves", hidden: true },
      html("div", { class: "toolbar" }, html("h2", {}, "Learning curves"), this.scale, this.where), this.fault, this.grid.element);
  }

  // Shows this attempt; `live` while it may write more.
  show(attempt, live) {
    this.live = live;
    if (attempt === this.attempt) return;
    this.attempt = attempt;
    this.version = 0;
    this.grid.close();
    this.element.hidden = true;
    clearTimeout(this.timer);
    this.read();
  }

  async read() {
    const { attempt } = this;
    let wait = this.live ? EVERY : RARELY;
    try {
      const found = await ask(`api/jobs/${this.job}/scalars?attempt=${attempt}&seen=${this.version}`);
      if (this.closed || attempt !== this.attempt) return;
      if (found) {
        this.version = found.version;
        this.draw(found);
        if (found.more) wait = 0;
      }
    } catch (error) {
      setText(this.fault, error.message);
    }
    if (!this.closed && attempt === this.attempt) this.timer = setTimeout(() => this.read(), document.hidden ? RARELY : wait);
  }

  // Where several runs meet in one plot, that comes first.
  draw({ tags = [], directories = [], faults = [] }) {
    this.element.hidden = !directories.length;
    setText(this.where, tags.length ? directories.join(", ") : `nothing was written yet to ${directories.join(", ")}`);
    setText(this.fault, faults.join("; "));
    this.scale.hidden = !tags.length;
    const sorted = [...tags].sort((one, other) => other.curves.length - one.curves.length || (one.tag < other.tag ? -1 : 1));
    this.grid.keep(sorted.map(({ tag }) => tag));
    for (const { tag, curves } of sorted) {
      const plot = this.grid.plot(tag, tag, { height: 190 });
      plot.logarithmic = this.logarithmic;
      plot.show(curves.map(({ run, points }) => ({ name: run, points })));
    }
  }

  toggle() {
    this.logarithmic = !this.logarithmic;
    this.scale.setAttribute("aria-pressed", this.logarithmic);
    for (const plot of this.grid.plots.values()) {
      plot.logarithmic = this.logarithmic;
      plot.draw();
    }
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.grid.close();
  }
}
