// The first page: the devices' memory over time, and the jobs.

import { html, setText } from "./dom.js";
import { clock, date } from "./format.js";
import { JobTable } from "./jobs.js";
import { DevicePlot, legend } from "./plot.js";
import { move, rangeButtons, seconds } from "./ranges.js";
import { now, store } from "./store.js";

export class HomePage {
  constructor() {
    this.plots = new Map();
    this.ranges = rangeButtons(() => this.redraw());
    this.since = html("span", { class: "since" });
    this.figures = html("div", { class: "figures" });
    this.table = new JobTable();
    this.element = html("div", {},
      html("section", { "aria-label": "Memory over time" },
        html("div", { class: "toolbar" }, this.ranges, this.since), this.figures, legend()),
      this.table.element);
  }

  draw() {
    for (const device of store.devices.keys()) {
      if (!this.plots.has(device)) {
        const plot = new DevicePlot(device, { height: store.devices.size > 2 ? 180 : 260 });
        this.plots.set(device, plot);
        this.figures.append(plot.element);
      }
    }
    this.redraw();
    this.table.draw();
  }

  // The last hour, or less while less is recorded.
  known() {
    return Math.min(3600, store.began === null ? 3600 : now() - store.began);
  }

  redraw() {
    const back = seconds(this.known());
    this.ranges.refresh(this.known());
    const young = store.began !== null && store.began > now() - back;
    setText(this.since, young
      ? `recorded since ${now() - store.began > 86400 ? date(store.began) : clock(store.began)}, when the broker started` : "");
    for (const plot of this.plots.values()) plot.draw(back);
  }

  tick() {
    this.redraw();
    this.table.draw();
  }

  key(event) {
    if (event.key === "[" || event.key === "]") {
      move(event.key === "[" ? -1 : 1, this.known());
      this.redraw();
    } else this.table.key(event);
  }

  close() {
    for (const plot of this.plots.values()) plot.close();
  }
}
