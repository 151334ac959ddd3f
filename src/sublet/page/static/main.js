// Starts the page: which of the pages is shown, keys, and the word on the connection.

import { setText } from "./dom.js";
import { HomePage } from "./home.js";
import { JobPage } from "./job.js";
import { ModelsPage } from "./models.js";
import { connect, connectionFault, onChange, store } from "./store.js";

const SOON = 30; // milliseconds in which changes are gathered into one drawing

const main = document.getElementById("main");
const help = document.getElementById("help");
let page = null;
let due = null;

function route() {
  const job = /^#\/job\/([0-9]{1,15})$/.exec(location.hash);
  page?.close();
  if (job) page = new JobPage(Number(job[1]));
  else if (location.hash === "#/models") page = new ModelsPage();
  else page = new HomePage();
  const name = location.hash === "#/models" ? "models" : "home";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === name && !job) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = job ? `#${job[1]} · Sublet` : "Sublet";
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
    down: "No broker is running: this is how it was last. The next command starts one.",
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
