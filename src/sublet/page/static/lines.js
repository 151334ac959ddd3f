// Draws lines over a step or a time: learning curves, and what a model did in the last hours.

import { moments } from "./bands.js";
import { html, setText, svg } from "./dom.js";
import { clock, date } from "./format.js";

const LEFT = 52;
const RIGHT = 10;
const TOP = 8;
const AXIS = 20;
const HUES = [205, 25, 145, 285, 55, 330, 175, 95];
const DASHES = [null, null, "6 3", "2 3"];

// A colour for each line: the first two are told apart by everybody, later ones by dashes as well.
export function lineStyle(index) {
  return { hue: HUES[index % HUES.length], dash: DASHES[Math.floor(index / HUES.length) % DASHES.length] };
}

export function number(value) {
  if (value === null || value === undefined) return "not a number";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

// Round amounts between two, at most so many.
export function roundTicks(from, to, most) {
  const span = to - from;
  if (!(span > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(span / most));
  const step = power * [1, 2, 5, 10].find((one) => span / (power * one) <= most);
  const found = [];
  for (let at = Math.ceil(from / step); at * step <= to + step * 1e-9; at += 1) found.push(Number((at * step).toPrecision(12)));
  return found;
}

// Where in a row of points, by their first number, the one lies that is nearest.
function nearest(points, x) {
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1][0] < points[low][0] - x ? low - 1 : low;
}

export class LinePlot {
  // `time`: the points are at wall seconds. `format`: how an amount is written. `zero`: the axis begins there.
  constructor(title, { height = 190, time = false, format = number, zero = false, unit = "step" } = {}) {
    Object.assign(this, { height, time, format, zero, unit });
    this.lines = [];
    this.faint = [];
    this.logarithmic = false;
    this.cursor = null;
    this.picture = svg("svg", { tabindex: 0, role: "img" });
    this.tip = html("div", { class: "tip", hidden: true, "aria-live": "polite" });
    this.title = html("h3", {}, html("bdi", {}, title));
    this.name = title;
    this.key = html("span", { class: "legend" });
    this.frame = html("div", { class: "frame" }, this.picture, this.tip);
    this.element = html("figure", { class: "plot lines" }, html("figcaption", {}, this.title, this.key), this.frame);
    this.picture.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.picture.addEventListener("blur", () => this.point(null));
    this.picture.addEventListener("keydown", (event) => this.move(event));
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.frame);
  }

  close() {
    this.resized.disconnect();
  }

  // Shows these lines from now on: [{ name, points: [[x, y or null], …] }, …]; and for a time, from when to when.
  // One without a name is drawn faintly, behind the others.
  show(lines, range = null) {
    this.lines = lines.filter((line) => line.name !== null);
    this.faint = lines.filter((line) => line.name === null);
    this.range = range;
    this.draw();
  }

  bounds() {
    const points = [...this.lines, ...this.faint].flatMap((line) => line.points).filter(([, y]) => y !== null && (!this.logarithmic || y > 0));
    const of = (place) => points.map((point) => point[place]);
    const lowest = (values) => values.reduce((one, other) => Math.min(one, other), Infinity);
    const highest = (values) => values.reduce((one, other) => Math.max(one, other), -Infinity);
    if (!points.length) return null;
    const [left, right] = this.range ?? [lowest(of(0)), highest(of(0))];
    let [low, high] = [lowest(of(1)), highest(of(1))];
    if (this.zero && !this.logarithmic) [low, high] = [Math.min(0, low), Math.max(high, 1e-9)];
    if (low === high) [low, high] = this.logarithmic ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    return { left, right: right === left ? left + 1 : right, low, high };
  }

  draw() {
    const width = this.frame.clientWidth;
    if (!width) return;
    this.width = width;
    this.bottom = this.height - AXIS;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.picture.setAttribute("height", this.height);
    this.caption();
    this.at = this.bounds();
    if (!this.at) {
      this.picture.replaceChildren(svg("text", { class: "empty", x: LEFT, y: TOP + 24 }, "nothing yet"));
      this.rule = null;
      this.point(null);
      return;
    }
    const { left, right, low, high } = this.at;
    const scale = this.logarithmic ? Math.log10 : (value) => value;
    this.x = (value) => LEFT + ((value - left) / (right - left)) * (width - LEFT - RIGHT);
    this.y = (value) => this.bottom - ((scale(value) - scale(low)) / (scale(high) - scale(low))) * (this.bottom - TOP);
    this.rule = svg("line", { class: "rule", y1: TOP, y2: this.bottom });
    this.picture.replaceChildren(this.grid(), ...this.faint.map((line) => this.line(line, null)), ...this.lines.map((line, index) => this.line(line, index)), this.rule);
    this.point(this.cursor);
  }

  caption() {
    const several = this.lines.length > 1;
    this.key.replaceChildren(...(several ? this.lines : []).map((line, index) => {
      const item = html("span", {}, html("i", {}), html("bdi", {}, line.name));
      item.style.setProperty("--hue", lineStyle(index).hue);
      return item;
    }));
    const last = this.lines.map((line) => `${several ? `${line.name}: ` : ""}${this.format(line.points.at(-1)?.[1])}`);
    this.picture.setAttribute("aria-label", `${this.name}. Last: ${last.join(", ")}. Use the arrow keys to read it.`);
  }

  grid() {
    const { left, right, low, high } = this.at;
    const group = svg("g", { class: "grid" });
    const amounts = this.logarithmic
      ? roundTicks(Math.log10(low), Math.log10(high), 5).map((power) => 10 ** power) : roundTicks(low, high, 5);
    for (const amount of amounts) {
      const y = this.y(amount).toFixed(1);
      group.append(svg("line", { x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }),
        svg("text", { class: "amount", x: LEFT - 6, y }, this.format(amount)));
    }
    const most = Math.max(2, Math.floor((this.width - LEFT - RIGHT) / 80));
    const steps = this.time ? moments(left, right, most) : roundTicks(left, right, most).filter(Number.isInteger);
    for (const at of steps) {
      const x = this.x(at).toFixed(1);
      group.append(svg("line", { x1: x, x2: x, y1: TOP, y2: this.bottom }),
        svg("text", { class: "moment", x, y: this.height - 6 }, this.time ? clock(at, right - left <= 300) : String(at)));
    }
    return group;
  }

  // What is no number leaves a gap; a point that stands alone is a dot.
  line({ points }, index) {
    const { hue, dash } = lineStyle(index ?? 0);
    const parts = [[]];
    for (const [x, y] of points) {
      if (y === null || (this.logarithmic && y <= 0)) parts.push([]);
      else parts.at(-1).push(`${this.x(x).toFixed(1)},${this.y(y).toFixed(1)}`);
    }
    const whole = parts.filter((part) => part.length);
    const group = svg("g", { class: index === null ? "curve faint" : "curve" },
      whole.filter((part) => part.length > 1).map((part) => svg("polyline", { points: part.join(" "), "stroke-dasharray": dash })),
      whole.filter((part) => part.length === 1).map(([place]) => {
        const [cx, cy] = place.split(",");
        return svg("circle", { cx, cy, r: 2.5 });
      }));
    group.style.setProperty("--hue", hue);
    return group;
  }

  move(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.at || !this.lines.length) return;
    event.preventDefault();
    const longest = this.lines.reduce((one, other) => (other.points.length > one.points.length ? other : one));
    const start = this.cursor === null ? longest.points.length - (by < 0 ? 0 : 1)
      : nearest(longest.points, this.at.left + ((this.cursor - LEFT) / (this.width - LEFT - RIGHT)) * (this.at.right - this.at.left));
    const place = Math.min(longest.points.length - 1, Math.max(0, start + by * (event.shiftKey ? 10 : 1)));
    this.point(this.x(longest.points[place][0]));
  }

  // Shows what was at this place; null for none.
  point(x) {
    const inside = this.at && this.lines.some((line) => line.points.length) && x !== null && x >= LEFT - 1 && x <= this.width - RIGHT + 1;
    this.cursor = inside ? x : null;
    this.tip.hidden = !inside;
    if (!this.rule) return;
    this.rule.style.display = inside ? "" : "none";
    if (!inside) return;
    const value = this.at.left + ((x - LEFT) / (this.width - LEFT - RIGHT)) * (this.at.right - this.at.left);
    const found = this.lines.map((line, index) => [line, index]).filter(([line]) => line.points.length)
      .map(([line, index]) => ({ line, index, point: line.points[nearest(line.points, value)] }));
    const closest = found.reduce((one, other) => (Math.abs(other.point[0] - value) < Math.abs(one.point[0] - value) ? other : one));
    const place = this.x(closest.point[0]);
    this.rule.setAttribute("x1", place);
    this.rule.setAttribute("x2", place);
    const where = this.time ? date(closest.point[0]) : `${this.unit} ${closest.point[0]}`;
    this.tip.replaceChildren(html("b", {}, where), ...found.slice(0, 12).map(({ line, index, point }) => {
      const other = !this.time && point[0] !== closest.point[0] ? ` (${this.unit} ${point[0]})` : "";
      const row = html("p", { class: "held" }, html("i", {}), html("bdi", {}, line.name), `: ${this.format(point[1])}${other}`);
      row.style.setProperty("--hue", lineStyle(index).hue);
      return row;
    }));
    this.tip.classList.toggle("left", place > this.width / 2);
    this.tip.style.left = `${place}px`;
  }
}

// Plots side by side, kept by name while what they show changes.
export class PlotGrid {
  constructor(kind = "") {
    this.element = html("div", { class: `plots ${kind}` });
    this.plots = new Map();
  }

  // The plot of this name; made if it is new.
  plot(name, title, options) {
    if (!this.plots.has(name)) {
      const plot = new LinePlot(title, options);
      this.plots.set(name, plot);
      this.element.append(plot.element);
    }
    return this.plots.get(name);
  }

  keep(names) {
    for (const [name, plot] of this.plots) {
      if (names.includes(name)) continue;
      plot.close();
      plot.element.remove();
      this.plots.delete(name);
    }
  }

  close() {
    this.keep([]);
  }
}
