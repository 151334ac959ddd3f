// How far back plots go: one choice for all of them.

import { html } from "./dom.js";

const RANGES = [["5 min", 300], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400], ["7 d", 604800]];
let chosen = 1;

export function seconds() {
  return RANGES[chosen][1];
}

export function move(by) {
  chosen = Math.min(RANGES.length - 1, Math.max(0, chosen + by));
}

export function rangeButtons(changed) {
  const buttons = RANGES.map(([text], index) => html("button", {
    type: "button",
    onclick: () => {
      chosen = index;
      changed();
    },
  }, text));
  const element = html("div", { class: "ranges", role: "group", "aria-label": "How far back" }, buttons);
  element.refresh = () => buttons.forEach((button, index) =>
    button.setAttribute("aria-pressed", index === chosen));
  element.refresh();
  return element;
}
