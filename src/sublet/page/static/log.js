// The output of an attempt, which grows while it is looked at.

import { html, setText } from "./dom.js";
import { ask } from "./store.js";

const EVERY = 1000;
const MOST_LINES = 5000;

export class LogView {
  constructor(job) {
    this.job = job;
    this.parts = [];
    this.lines = 0;
    this.text = html("pre", { class: "log", tabindex: 0, "aria-label": "Output" });
    this.open = html("span", {});
    this.text.append(this.open);
    this.follow = html("input", { type: "checkbox", checked: true });
    this.state = html("span", { class: "facts" });
    this.element = html("section", { "aria-label": "Output" },
      html("div", { class: "toolbar" }, html("h2", {}, "Output"),
        html("label", {}, this.follow, " follow"), this.state), this.text);
  }

  // Shows this attempt, from its last lines on.
  show(attempt, stream) {
    if (this.attempt === attempt && this.stream === stream) return;
    this.attempt = attempt;
    this.stream = stream;
    this.position = null;
    this.parts = [];
    this.lines = 0;
    this.text.replaceChildren(this.open);
    this.open.textContent = "";
    clearTimeout(this.timer);
    if (stream === undefined) {
      setText(this.state, "none is kept: only jobs in the queue have a log, once they have begun");
      return;
    }
    setText(this.state, "");
    this.read();
  }

  async read() {
    const { attempt, stream } = this;
    let wait = EVERY;
    try {
      const from = this.position === null ? "" : `&from=${this.position}`;
      const piece = await ask(`api/jobs/${this.job}/log?attempt=${attempt}&stream=${stream}${from}`);
      if (this.closed || attempt !== this.attempt || stream !== this.stream) return;
      if (piece) {
        this.add(piece);
        if (piece.more) wait = 0;
      }
      setText(this.state, piece && !this.lines && !piece.open_line ? "nothing was written yet" : "");
    } catch (error) {
      setText(this.state, error.message);
    }
    if (!this.closed && attempt === this.attempt) {
      this.timer = setTimeout(() => this.read(), document.hidden ? 5 * EVERY : wait);
    }
  }

  add(piece) {
    this.position = piece.position;
    if (piece.lines.length) {
      const part = html("span", {}, `${piece.lines.join("\n")}\n`);
      this.parts.push([part, piece.lines.length]);
      this.lines += piece.lines.length;
      this.open.before(part);
    }
    while (this.lines > MOST_LINES && this.parts.length > 1) {
      const [part, count] = this.parts.shift();
      part.remove();
      this.lines -= count;
    }
    setText(this.open, piece.open_line ?? "");
    if (this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}
