// One question and its answer on the page. What comes from outside is set as text, never as markup.

import { preview } from "./media.js";
import { showTrace } from "./timeline.js";

export class Turn {
  constructor(question, media) {
    const made = document.getElementById("turn-template").content.cloneNode(true);
    this.question = question;
    this.media = media;
    this.answer = "";
    this.failed = false;
    this.element = made.querySelector(".turn");
    this._answer = made.querySelector(".answer");
    this._reasoning = made.querySelector(".reasoning");
    this._problem = made.querySelector(".problem");
    this._trace = made.querySelector(".trace");
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

  begin() {
    this.answer = "";
    this.failed = false;
    this._answer.textContent = "";
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
    this._answer.append(text);
  }

  addReasoning(text) {
    this._reasoning.hidden = false;
    this._reasoning.querySelector("p").append(text);
  }

  end(usage, metadata) {
    this._over();
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

  fail(problem) {
    this._over();
    this.failed = true;
    this._say(problem.status >= 400 ? `Error ${problem.status}` : "Error", problem.message);
  }

  _say(title, sentence) {
    this._problem.querySelector("strong").textContent = title;
    this._problem.querySelector("span").textContent = sentence;
    this._problem.hidden = false;
  }

  _over() {
    this.element.classList.remove("streaming");
    this.element.removeAttribute("aria-busy");
    this._answer.classList.toggle("empty", !this.answer);
  }
}
