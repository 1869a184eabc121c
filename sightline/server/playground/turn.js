// One question and its answer on the page. What comes from outside is set as text, never as markup.

import { drawn, marksOf } from "./grounding.js";
import { markdown } from "./markdown.js";
import { preview } from "./media.js";
import { showTrace } from "./timeline.js";

const PAUSE_MS = 40; // between two looks of an answer that comes, and at least four times what one takes

export class Turn {
  /** `before` is the image that was last asked about. */
  constructor(question, media, before = null) {
    const made = document.getElementById("turn-template").content.cloneNode(true);
    this.question = question;
    this.media = media;
    this.answer = "";
    this.failed = false;
    this.image = media.find((medium) => medium.kind === "image") ?? before;
    this._rendering = 0; // a timer
    this._pause = PAUSE_MS;
    this.element = made.querySelector(".turn");
    this._answer = made.querySelector(".answer");
    this._reasoning = made.querySelector(".reasoning");
    this._problem = made.querySelector(".problem");
    this._trace = made.querySelector(".trace");
    this._drawn = made.querySelector(".drawn");
    this._tools = made.querySelector(".tools");
    this._copy = made.querySelector(".copy");
    this._copy.addEventListener("click", () => this._copyAnswer());
    made.querySelector(".asked .text").textContent = question;
    for (const medium of media) {
      const item = document.createElement("li");
      item.append(preview(medium));
      made.querySelector(".shown").append(item);
    }
  }

  onRetry(action) {
    this._problem.querySelector("button").addEventListener("click", action);
  }

  onEdit(action) {
    this.element.querySelector(".edit").addEventListener("click", action);
  }

  begin() {
    this.answer = "";
    this.failed = false;
    this._answer.replaceChildren();
    this._drawn.replaceChildren();
    this._drawn.hidden = true;
    this._tools.hidden = true;
    this._answer.classList.remove("empty");
    this._reasoning.querySelector("p").textContent = "";
    this._reasoning.hidden = true;
    this._problem.hidden = true;
    this._trace.hidden = true;
    this.element.classList.add("streaming");
    this.element.setAttribute("aria-busy", "true");
  }

  addText(text) {
    this.answer += text;
    this._rendering ||= setTimeout(() => this._render(), this._pause);
  }

  _render() {
    clearTimeout(this._rendering);
    this._rendering = 0;
    const start = performance.now();
    this._answer.replaceChildren(markdown(this.answer));
    this._pause = Math.max(PAUSE_MS, 4 * (performance.now() - start));
  }

  addReasoning(text) {
    this._reasoning.hidden = false;
    this._reasoning.querySelector("p").append(text);
  }

  /** `coordinates` and `maxPixels`: how to read boxes and points, as grounding.js has it. */
  end(usage, metadata, coordinates, maxPixels) {
    this._over();
    const marks = this.image ? marksOf(this.answer) : [];
    if (marks.length) this._drawn.replaceChildren(drawn(this.image, marks, coordinates, maxPixels));
    this._drawn.hidden = !marks.length;
    showTrace(this._trace, usage, metadata);
  }

  /** Another question follows: the timeline makes room. */
  fold() {
    const timeline = this._trace.querySelector(".timeline");
    if (timeline) timeline.open = false;
  }

  stopped() {
    this._over();
    this._say("Stopped", "You stopped this answer.");
  }

  /** `named` puts the names of files into a message. */
  fail(problem, named) {
    this._over();
    this.failed = true;
    this._say(problem.status >= 400 ? `Error ${problem.status}` : "Error", named(problem.message));
  }

  _say(title, sentence) {
    this._problem.querySelector("strong").textContent = title;
    this._problem.querySelector("span").textContent = sentence;
    this._problem.hidden = false;
  }

  async _copyAnswer() {
    await copy(this.answer);
    this._copy.textContent = "Copied";
    setTimeout(() => { this._copy.textContent = "Copy"; }, 1500);
  }

  _over() {
    this._render();
    this._tools.hidden = !this.answer;
    this.element.classList.remove("streaming");
    this.element.removeAttribute("aria-busy");
    this._answer.classList.toggle("empty", !this.answer);
  }
}

/** As it was written, Markdown and all. Only secure origins have the clipboard; elsewhere a selection is copied. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "hidden";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
