// Parallel coordinates: an axis for each parameter and one for the metric, a line for each trial.

import { html, svg } from "./dom.js";
import { number } from "./lines.js";

const LEFT = 30;
const RIGHT = 74;
const TOP = 34;
const BOTTOM = 14;
const FEW = 6; // values that are all written at an axis
const SHARE = 0.5; // where a value is drawn that has no neighbours

// An axis for these values: places from 0 to 1, and what is written at them.
export function axis(values, logarithmic) {
  const known = values.filter((value) => value !== null);
  if (!known.every((value) => typeof value === "number")) {
    const names = [...new Set(known.map(String))];
    const place = (value) => (names.length === 1 ? SHARE : names.indexOf(String(value)) / (names.length - 1));
    return { place, labels: names.map((name) => [place(name), name]) };
  }
  const low = known.reduce((one, other) => Math.min(one, other), Infinity);
  const high = known.reduce((one, other) => Math.max(one, other), -Infinity);
  const scale = logarithmic && low > 0 ? Math.log : (value) => value;
  const place = (value) => (low === high ? SHARE : (scale(value) - scale(low)) / (scale(high) - scale(low)));
  const few = [...new Set(known)];
  const labels = few.length <= FEW ? few : [low, high];
  return { place, labels: labels.map((value) => [place(value), number(value)]) };
}

export class Coordinates {
  constructor(choose) {
    this.choose = choose;
    this.trials = [];
    this.picture = svg("svg", { role: "img" });
    this.frame = html("div", { class: "frame" }, this.picture);
    this.element = html("figure", { class: "plot coordinates" },
      html("figcaption", {}, html("h3", {}, "Parameters of each trial"),
        html("span", { class: "legend" }, html("span", {}, html("i", { class: "key-good" }), " best"), html("span", {}, html("i", { class: "key-bad" }), " worst"))),
      this.frame);
    this.picture.addEventListener("click", (event) => {
      const trial = event.target.closest("[data-trial]")?.dataset.trial;
      if (trial !== undefined) this.choose(Number(trial));
    });
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.frame);
  }

  close() {
    this.resized.disconnect();
  }

  // The trials best first; those without a value are not drawn.
  show(parameters, trials, metric, chosen) {
    this.trials = trials.filter((trial) => trial.value !== null);
    this.columns = [
      ...parameters.map((one, index) => ({ name: one.name, logarithmic: one.logarithmic, of: (trial) => trial.params[index] })),
      { name: metric, of: (trial) => trial.value },
    ];
    this.chosen = chosen;
    this.draw();
  }

  draw() {
    const width = this.frame.clientWidth;
    if (!width || !this.columns) return;
    const height = 260;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.setAttribute("height", height);
    this.picture.setAttribute("aria-label",
      `Parameters of ${this.trials.length} trials: ${this.columns.map((one) => one.name).join(", ")}. The table below has them, too.`);
    if (!this.trials.length) {
      this.picture.replaceChildren(svg("text", { class: "empty", x: LEFT, y: TOP }, "no trial has a value yet"));
      return;
    }
    const step = (width - LEFT - RIGHT) / Math.max(1, this.columns.length - 1);
    const bottom = height - BOTTOM;
    const axes = this.columns.map((column, index) => ({
      ...column, ...axis(this.trials.map(column.of), column.logarithmic), x: LEFT + index * step,
    }));
    const y = (share) => (bottom - share * (bottom - TOP)).toFixed(1);
    this.picture.replaceChildren(
      ...[...this.trials].reverse().map((trial) => this.line(trial, axes, y)),
      ...axes.map((one) => this.axis(one, y, bottom, step)));
  }

  // The best are drawn last, and so over the others; a parameter that a trial has not is left out.
  line(trial, axes, y) {
    const rank = this.trials.indexOf(trial) / Math.max(1, this.trials.length - 1);
    const points = axes.filter((one) => one.of(trial) !== null).map((one) => `${one.x.toFixed(1)},${y(one.place(one.of(trial)))}`);
    const element = svg("polyline", {
      points: points.join(" "), "data-trial": trial.number,
      class: trial.number === this.chosen ? "chosen" : null,
    }, svg("title", {}, `trial ${trial.number}: ${number(trial.value)}`));
    element.style.setProperty("--hue", Math.round(205 - 180 * rank));
    element.style.setProperty("--rank", (0.85 - 0.6 * rank).toFixed(2));
    return element;
  }

  axis(one, y, bottom, step) {
    const most = Math.max(3, Math.floor(step / 7));
    const short = (text) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
    return svg("g", { class: "grid" },
      svg("line", { x1: one.x, x2: one.x, y1: TOP, y2: bottom }),
      svg("text", { class: "moment", x: one.x, y: TOP - 16 }, short(one.name), svg("title", {}, one.name)),
      ...one.labels.slice(0, 12).map(([share, text]) => svg("text", { class: "value", x: one.x + 5, y: y(share) }, short(text))));
  }
}
