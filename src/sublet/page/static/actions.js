// What can be done to a job: asked first, then sent, then said.

import { html } from "./dom.js";
import { ask } from "./store.js";

const TEXTS = {
  cancel: ["Cancel", "It is stopped, or leaves the queue. What it has not saved is lost."],
  pause: ["Pause", "It stands still and keeps its memory, until it is resumed."],
  resume: ["Resume", "It goes on."],
};

let timer = null;

export function notice(text, failed = false) {
  const element = document.getElementById("notice");
  element.textContent = text;
  element.classList.toggle("failed", failed);
  element.hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => { element.hidden = true; }, failed ? 20000 : 6000);
}

export function possible(row) {
  if (row.state === "finished" || row.state === "stopping") return [];
  return row.state === "paused" ? ["resume", "cancel"] : ["pause", "cancel"];
}

function confirmed(question, yes) {
  const dialog = document.getElementById("confirm");
  const accept = document.getElementById("confirm-yes");
  document.getElementById("confirm-text").textContent = question;
  accept.textContent = yes;
  const refuse = document.getElementById("confirm-no");
  return new Promise((resolve) => {
    const answer = (value) => () => {
      dialog.close();
      resolve(value);
    };
    accept.onclick = answer(true);
    refuse.onclick = answer(false);
    dialog.oncancel = () => resolve(false); // Esc
    dialog.showModal();
    refuse.focus();
  });
}

export async function perform(verb, row) {
  const [word, effect] = TEXTS[verb];
  const name = row.name.length > 60 ? `${row.name.slice(0, 60)}…` : row.name;
  const whole = row.gang?.length ? ` and all ${row.gang.length} tasks of its cluster` : "";
  if (!(await confirmed(`${word} #${row.id} ${name}${whole}? ${effect}`, word))) return;
  try {
    const { said } = await ask(`api/jobs/${row.id}/${verb}`, { method: "POST" });
    notice(said);
  } catch (error) {
    notice(error.message, true);
  }
}

export function buttons(row) {
  return possible(row).map((verb) => html("button", {
    type: "button",
    class: verb === "cancel" ? "danger" : null,
    "aria-label": `${TEXTS[verb][0]} job ${row.id}`,
    onclick: (event) => {
      event.stopPropagation();
      perform(verb, row);
    },
  }, TEXTS[verb][0]));
}
