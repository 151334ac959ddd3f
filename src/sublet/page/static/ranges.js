// How far back plots go: one choice for all of them.

import { html } from "./dom.js";

const RANGES = [["5 min", 300], ["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400], ["7 d", 604800]];
let chosen = null; // Until somebody chooses: as long as there is something to see.

function index(known) {
  if (chosen !== null) return chosen;
  const enough = RANGES.findIndex(([, length]) => length >= known);
  return enough < 0 ? RANGES.length - 1 : enough;
}

// How far back is shown, where something is known for so many seconds.
export function seconds(known) {
  return RANGES[index(known)][1];
}

export function move(by, known) {
  chosen = Math.min(RANGES.length - 1, Math.max(0, index(known) + by));
}

export function rangeButtons(changed) {
  const buttons = RANGES.map(([text], place) => html("button", {
    type: "button",
    onclick: () => {
      chosen = place;
      changed();
    },
  }, text));
  const element = html("div", { class: "ranges", role: "group", "aria-label": "How far back" }, buttons);
  element.refresh = (known) => buttons.forEach((button, place) =>
    button.setAttribute("aria-pressed", place === index(known)));
  return element;
}
