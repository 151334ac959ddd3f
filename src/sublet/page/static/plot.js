// Draws the memory of one device over time: bands for leases, filled as far as they are used.

import { level, moments, outline, rowAt, runs, stack, thin, ticks } from "./bands.js";
import { html, setText, svg } from "./dom.js";
import { bytes, clock, date, hue } from "./format.js";
import { now, store } from "./store.js";

const LEFT = 64;
const RIGHT = 10;
const TOP = 10;
const STRIP = 18; // the events below the plot
const AXIS = 20;
const STEP = 2; // pixels
const COLUMN = 9; // pixels for one event
const MOST_MARKS = 12; // of more events that went wrong, only the signs are drawn
const LABEL = { tall: 15, long: 70 };

// The most serious first: where there is room for one sign only, it is the first of these.
export const EVENTS = [
  ["out of memory", "✕"],
  ["failed", "!"],
  ["preempted", "◆"],
  ["cancelled", "■"],
  ["granted", "▲"],
  ["ended", "●"],
  ["grown", "+"],
  ["shrunk", "−"],
];
const SIGNS = new Map(EVENTS);
const RANKS = new Map(EVENTS.map(([kind], rank) => [kind, rank]));
const SERIOUS = new Set(["out of memory", "failed", "preempted"]);

export function jobLabel(job) {
  if (job === 0) return "smaller jobs";
  return `#${job} ${store.names.get(job) ?? store.jobs.get(job)?.name ?? ""}`.trim();
}

function className(kind) {
  return `event event-${kind.replaceAll(" ", "-")}`;
}

export class DevicePlot {
  constructor(device, { height = 260, job = null } = {}) {
    this.device = device;
    this.height = height;
    this.job = job;
    this.cursor = null;
    this.picture = svg("svg", { tabindex: 0, role: "img" });
    this.tip = html("div", { class: "tip", hidden: true, "aria-live": "polite" });
    this.title = html("h2", {});
    this.facts = html("span", { class: "facts" });
    this.frame = html("div", { class: "frame" }, this.picture, this.tip);
    this.element = html("figure", { class: "plot" },
      html("figcaption", {}, this.title, this.facts), this.frame);
    this.picture.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.picture.addEventListener("blur", () => this.point(null));
    this.picture.addEventListener("keydown", (event) => this.key(event));
    this.picture.addEventListener("click", (event) => {
      const job = event.target.closest("[data-job]")?.dataset.job;
      if (Number(job)) location.hash = `#/job/${job}`;
    });
    this.resized = new ResizeObserver(() => this.draw(this.seconds));
    this.resized.observe(this.frame);
  }

  close() {
    this.resized.disconnect();
  }

  draw(seconds) {
    if (!seconds) return;
    this.seconds = seconds;
    const row = store.devices.get(this.device);
    const rows = store.usage.get(this.device) ?? [];
    this.width = Math.max(240, this.frame.clientWidth);
    this.inner = this.width - LEFT - RIGHT;
    this.bottom = this.height - STRIP - AXIS;
    this.to = now();
    this.from = this.to - seconds;
    this.capacity = row?.device.capacity ?? Math.max(1, ...rows.map((one) => this.total(one)));
    this.caption(row, rows);
    const steps = Math.max(1, Math.floor(this.inner / STEP));
    const { base, jobs } = stack(thin(rows, this.from, this.to, steps));
    this.x = (step) => (LEFT + (step * this.inner) / steps).toFixed(1);
    this.y = (amount) => (this.bottom - (amount / this.capacity) * (this.bottom - TOP)).toFixed(1);
    this.picture.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.picture.setAttribute("height", this.height);
    this.rule = svg("line", { class: "rule", y1: TOP, y2: this.bottom + STRIP });
    this.picture.replaceChildren(
      this.grid(), this.base(base), this.bands(jobs), this.limit(row), this.events(), this.rule,
    );
    if (!rows.length) {
      this.picture.append(svg("text", { class: "empty", x: LEFT + 12, y: TOP + 28 },
        "Nothing was recorded yet: this begins with the first lease."));
    }
    this.point(this.cursor);
  }

  total([, strangers, nurseries, holdings]) {
    return holdings.reduce((sum, one) => sum + Math.max(one[1], one[2]), strangers + nurseries);
  }

  caption(row, rows) {
    const name = row && row.device.name !== this.device ? `${this.device}: ${row.device.name}` : this.device;
    setText(this.title, name);
    const facts = row
      ? `${bytes(row.leased)} leased, ${bytes(row.strangers)} others, ${bytes(row.standing)} nursery, ` +
        `${bytes(row.free)} free of ${bytes(row.device.capacity)}`
      : "";
    setText(this.facts, row?.fault ? `cannot be used: ${row.fault}` : facts);
    this.picture.setAttribute("aria-label",
      `Memory of ${name} over time. ${facts}. ${rows.length} samples; use the arrow keys to read them.`);
  }

  grid() {
    const group = svg("g", { class: "grid" });
    for (const amount of ticks(this.capacity)) {
      group.append(
        svg("line", { x1: LEFT, x2: this.width - RIGHT, y1: this.y(amount), y2: this.y(amount) }),
        svg("text", { x: LEFT - 6, y: this.y(amount), class: "amount" }, bytes(amount)),
      );
    }
    const most = Math.max(2, Math.floor(this.inner / 80));
    for (const at of moments(this.from, this.to, most)) {
      const x = LEFT + ((at - this.from) / this.seconds) * this.inner;
      const text = this.seconds > 86400 ? date(at).split(",")[0] : clock(at, this.seconds <= 300);
      group.append(
        svg("line", { x1: x, x2: x, y1: TOP, y2: this.bottom }),
        svg("text", { x, y: this.height - 6, class: "moment" }, text),
      );
    }
    return group;
  }

  base(base) {
    const nurseries = [];
    const strangers = [];
    base.forEach((one, step) => {
      if (one && one[0]) nurseries.push([step, 0, one[0]]);
      if (one && one[1]) strangers.push([step, Math.max(0, this.capacity - one[1]), this.capacity]);
    });
    const path = (points, name) => svg("path", {
      class: name, d: runs(points).map((run) => outline(run, 1, 2, this.x, this.y)).join(" "),
    });
    return svg("g", {}, path(nurseries, "nursery"), path(strangers, "strangers"));
  }

  bands(jobs) {
    const group = svg("g", {});
    for (const [job, points] of jobs) {
      const parts = runs(points);
      const band = svg("g", {
        class: this.job !== null && job !== this.job ? "band other" : "band", "data-job": job,
      });
      band.style.setProperty("--hue", hue(job));
      band.append(
        svg("path", { class: "lease", d: parts.map((run) => outline(run, 1, 3, this.x, this.y)).join(" ") }),
        svg("path", { class: "use", d: parts.map((run) => outline(run, 1, 2, this.x, this.y)).join(" ") }),
      );
      this.label(band, job, parts);
      group.append(band);
    }
    return group;
  }

  label(band, job, parts) {
    const levels = parts.map(level);
    const part = levels.reduce((one, other) => (other.length >= one.length ? other : one));
    const [step, bottom, , top] = part[part.length - 1];
    const long = this.x(step + 1) - this.x(part[0][0]);
    if (long < LABEL.long || this.y(bottom) - this.y(top) < LABEL.tall) return;
    const most = Math.floor((long - 8) / 6.5);
    const text = jobLabel(job);
    const middle = (Number(this.y(bottom)) + Number(this.y(top))) / 2;
    const shown = text.length > most ? `${text.slice(0, most - 1)}…` : text;
    band.append(svg("text", { x: Number(this.x(step + 1)) - 5, y: middle, class: "label" }, shown));
  }

  limit(row) {
    if (!row) return svg("g", {});
    return svg("g", {},
      svg("line", { class: "capacity", x1: LEFT, x2: this.width - RIGHT, y1: TOP, y2: TOP }),
      svg("text", { class: "amount", x: LEFT - 6, y: TOP + 2 }, bytes(row.device.capacity)));
  }

  here() {
    return store.events.filter((event) => event.device === this.device &&
      event.at >= this.from && (this.job === null || event.job === this.job));
  }

  events() {
    const group = svg("g", {});
    const columns = new Map();
    for (const event of this.here()) {
      const x = LEFT + ((event.at - this.from) / this.seconds) * this.inner;
      const column = Math.floor(x / COLUMN);
      const before = columns.get(column);
      if (!before || RANKS.get(event.kind) < RANKS.get(before.event.kind)) columns.set(column, { event, x });
    }
    const serious = [...columns.values()].filter(({ event }) => SERIOUS.has(event.kind)).length;
    for (const { event, x } of columns.values()) {
      if (SERIOUS.has(event.kind) && serious <= MOST_MARKS) {
        group.append(svg("line", { class: `${className(event.kind)} mark`, x1: x, x2: x, y1: TOP, y2: this.bottom }));
      }
      group.append(svg("text", { class: className(event.kind), x, y: this.bottom + 13, "data-job": event.job },
        SIGNS.get(event.kind) ?? "?"));
    }
    return group;
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const step = event.shiftKey ? 40 : 8;
    const start = this.cursor ?? this.width - RIGHT;
    this.point(Math.min(this.width - RIGHT, Math.max(LEFT, start + by * step)));
  }

  // Shows what was at this place; null for none.
  point(x) {
    this.cursor = x === null || x < LEFT || x > this.width - RIGHT ? null : x;
    this.tip.hidden = this.cursor === null;
    if (!this.rule) return;
    this.rule.style.display = this.cursor === null ? "none" : "";
    if (this.cursor === null) return;
    this.rule.setAttribute("x1", this.cursor);
    this.rule.setAttribute("x2", this.cursor);
    const at = this.from + ((this.cursor - LEFT) / this.inner) * this.seconds;
    const near = (COLUMN / this.inner) * this.seconds;
    const row = rowAt(store.usage.get(this.device) ?? [], at);
    this.tip.replaceChildren(html("b", {}, this.seconds > 86400 ? date(at) : clock(at, true)),
      ...this.read(row), ...this.happened(at, near));
    this.tip.classList.toggle("left", this.cursor > this.width / 2);
    this.tip.style.left = `${this.cursor}px`;
  }

  read(row) {
    if (row === null) return [html("p", {}, "not recorded")];
    const [, strangers, nurseries, holdings] = row;
    const largest = [...holdings].sort((one, other) => other[2] - one[2]).slice(0, 8);
    const lines = largest.map(([job, charge, used]) => {
      const line = html("p", { class: "held" }, html("i", {}),
        `${jobLabel(job)}: ${bytes(used)} of ${bytes(charge)}`);
      line.style.setProperty("--hue", hue(job));
      return line;
    });
    if (holdings.length > 8) lines.push(html("p", {}, `and ${holdings.length - 8} more`));
    lines.push(html("p", {}, `others ${bytes(strangers)}, nursery ${bytes(nurseries)}`));
    return lines;
  }

  happened(at, near) {
    const found = this.here().filter((event) => Math.abs(event.at - at) <= near);
    const lines = found.slice(-4).map((event) => html("p", { class: className(event.kind) },
      `${SIGNS.get(event.kind)} ${jobLabel(event.job)} ${event.kind}` +
      `${event.text && event.text !== event.kind ? ` (${event.text})` : ""}`));
    if (found.length > 4) lines.push(html("p", {}, `and ${found.length - 4} more events`));
    return lines;
  }
}

export function legend() {
  const signs = EVENTS.map(([kind, sign]) =>
    html("span", {}, html("b", { class: className(kind), "aria-hidden": "true" }, sign), ` ${kind}`));
  return html("p", { class: "legend" },
    html("span", {}, html("i", { class: "key-lease" }), " lease"),
    html("span", {}, html("i", { class: "key-use" }), " used"),
    html("span", {}, html("i", { class: "key-nursery" }), " nursery"),
    html("span", {}, html("i", { class: "key-strangers" }), " programs without a lease"), signs);
}
