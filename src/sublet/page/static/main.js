// Starts the page: which of the pages is shown, keys, and the word on the connection.

import { setText } from "./dom.js";
import { HomePage } from "./home.js";
import { JobPage } from "./job.js";
import { ModelsPage } from "./models.js";
import { SweepPage, SweepsPage } from "./sweeps.js";
import { connect, connectionFault, onChange, store } from "./store.js";

const SOON = 30; // milliseconds in which changes are gathered into one drawing

const main = document.getElementById("main");
const help = document.getElementById("help");
let page = null;
let due = null;

// The page of this address, the part of the navigation that leads there, and a title.
function chosen(hash) {
  const job = /^#\/job\/([0-9]{1,15})$/.exec(hash);
  if (job) return [() => new JobPage(Number(job[1])), null, `#${job[1]} · Sublet`];
  const sweep = /^#\/sweep\/([\w.-]{1,200})$/.exec(hash);
  if (sweep) return [() => new SweepPage(sweep[1]), null, "Sweep · Sublet"];
  if (hash === "#/sweeps") return [() => new SweepsPage(), "sweeps", "Sweeps · Sublet"];
  if (hash === "#/models") return [() => new ModelsPage(), "models", "Models · Sublet"];
  return [() => new HomePage(), "home", "Sublet"];
}

function route() {
  const [make, name, title] = chosen(location.hash);
  page?.close();
  page = make();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = title;
  main.replaceChildren(page.element);
  page.draw();
}

function drawConnection() {
  const element = document.getElementById("connection");
  const fault = connectionFault();
  const state = fault ? "lost" : !store.connected ? "waiting" : store.broker === false ? "down" : "live";
  const texts = {
    lost: fault,
    waiting: "connecting …",
    down: store.fault || "No broker is running: this is how it was last. The next command starts one.",
    live: "live",
  };
  element.className = state;
  setText(element, texts[state]);
  main.classList.toggle("stale", state !== "live" && store.broker !== null);
}

function draw() {
  due = null;
  drawConnection();
  page.draw();
}

function key(event) {
  const typing = event.target.closest("input, textarea, select");
  if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing) {
    if (event.key === "Escape") typing.blur();
    return;
  }
  if (event.key === "?") help.showModal();
  else if (event.key === "Enter" && event.target.closest("a, button")) return;
  else page.key(event);
}

onChange(() => {
  due ??= setTimeout(draw, SOON);
});
addEventListener("hashchange", route);
addEventListener("keydown", key);
document.getElementById("help-button").addEventListener("click", () => help.showModal());
document.getElementById("help-close").addEventListener("click", () => help.close());
setInterval(() => {
  if (!document.hidden) page.tick();
}, 1000);
route();
connect();
