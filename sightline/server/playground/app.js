// The page: attachments, the conversation, and what happens when somebody asks.

import { ask, engineState, getJson, Problem } from "./api.js";
import { asFrames, contentPart, forget, preview, readMedium, refusal, withNames } from "./media.js";
import { setUpSamples } from "./samples.js";
import { askForKey, sampling, settingsAreSound, setUpSettings, systemPrompt } from "./settings.js";
import { Turn } from "./turn.js";

const at = (id) => document.getElementById(id);
const question = at("question");

let model = null; // its name, once known
let attached = [];
let turns = [];
let asking = null; // an AbortController while an answer comes
let editing = null; // the turn whose question is in the composer again
let coordinates = "thousandths"; // of boxes and points in answers

// ---- Attachments

async function attach(files) {
  const refused = [];
  for (const file of files) {
    try {
      const reason = refusal(file);
      if (reason) refused.push(reason);
      else attached.push(await readMedium(file));
    } catch (error) {
      refused.push(error.message);
    }
  }
  at("refused").textContent = refused.join(" ");
  at("refused").hidden = !refused.length;
  showAttached();
  question.focus();
}

function showAttached() {
  at("attachments").replaceChildren(...attached.map((medium) => {
    const item = document.createElement("li");
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Remove ${medium.name}`);
    remove.addEventListener("click", () => {
      attached = attached.filter((other) => other !== medium);
      showAttached();
      question.focus();
    });
    item.append(preview(medium, true), remove);
    return item;
  }));
  at("as-video").hidden = images().length < 2;
  showState();
}

const images = () => attached.filter((medium) => medium.kind === "image");

/** What is attached, for one question; images are frames of one video where somebody said so. */
function takeAttached() {
  const frames = images();
  const together = frames.length > 1 && at("frames").checked;
  const video = together && asFrames(frames, at("frames-fps").valueAsNumber);
  const media = together ? [video, ...attached.filter((medium) => !frames.includes(medium))] : attached;
  attached = [];
  at("frames").checked = false;
  showAttached();
  return media;
}

function setUpAttachments() {
  at("attach").addEventListener("click", () => at("files").click());
  at("files").addEventListener("change", async () => {
    await attach([...at("files").files]);
    at("files").value = "";
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) {
      event.preventDefault();
      attach(files);
    }
  });
  let depth = 0; // of elements that were entered while dragging
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const over = (change) => (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth = Math.max(0, depth + change);
    document.body.classList.toggle("dragging", depth > 0);
  };
  document.addEventListener("dragenter", over(1));
  document.addEventListener("dragleave", over(-1));
  document.addEventListener("dragover", over(0));
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    over(-depth)(event);
    attach([...event.dataTransfer.files]);
  });
}

// ---- The conversation

function messages(last) {
  const list = systemPrompt() ? [{ role: "system", content: systemPrompt() }] : [];
  for (const turn of turns) {
    if (turn !== last && (turn.failed || !turn.answer)) continue;
    const parts = turn.media.map(contentPart);
    if (turn.question) parts.push({ type: "text", text: turn.question });
    list.push({ role: "user", content: parts });
    if (turn === last) break;
    list.push({ role: "assistant", content: turn.answer });
  }
  return list;
}

async function answer(turn) {
  if (asking || !settingsAreSound()) return;
  const own = new AbortController();
  asking = own;
  turn.begin();
  showState();
  following = true;
  follow();
  let usage = null;
  let metadata = null;
  try {
    if (!model) await findModel();
    const body = {
      model,
      messages: messages(turn),
      stream: true,
      stream_options: { include_usage: true },
      return_timings: true,
      ...sampling(),
    };
    for await (const event of ask(body, own.signal)) {
      const delta = event.choices[0]?.delta;
      if (delta?.reasoning_content) turn.addReasoning(delta.reasoning_content);
      if (delta?.content) turn.addText(delta.content);
      usage = event.usage ?? usage;
      metadata = event.metadata ?? metadata;
    }
    turn.end(usage, metadata, coordinates, sampling().mm_processor_kwargs?.max_pixels);
  } catch (error) {
    if (error.name === "AbortError") turn.stopped();
    else turn.fail(error instanceof Problem ? error : new Problem(0, String(error)), (message) => withNames(message, sent(turn)));
    if (error.status === 401) askForKey();
  } finally {
    if (asking === own) asking = null;
    showState();
    watch();
  }
}

/** All media that go along with a turn's question. */
function sent(turn) {
  return turns.slice(0, turns.indexOf(turn) + 1).flatMap(({ media }) => media);
}

function addTurn(text, media) {
  const turn = new Turn(text, media, turns.at(-1)?.image);
  turn.onRetry(() => answer(turn));
  turn.onEdit(() => edit(turn));
  turns.at(-1)?.fold();
  turns.push(turn);
  at("turns").append(turn.element);
  at("welcome").hidden = true;
  return turn;
}

// ---- A question that is asked anew

/** Puts a question and its media into the composer. Nothing is forgotten until it is asked. */
function edit(turn) {
  if (asking) return;
  editing = turn;
  question.value = turn.question;
  attached = turn.media.flatMap((medium) => medium.images ?? [medium]);
  const frames = turn.media.find((medium) => medium.kind === "frames");
  at("frames").checked = Boolean(frames);
  if (frames) at("frames-fps").value = frames.fps;
  showAttached();
  fit();
  showState();
  question.focus();
}

function stopEditing() {
  editing = null;
  attached = [];
  question.value = "";
  at("frames").checked = false;
  showAttached();
  fit();
  showState();
  question.focus();
}

/** Takes the question that is asked anew off the page, and all that follows it; media that are asked about again stay. */
function replaceEdited(kept) {
  if (!editing) return;
  const stay = new Set(kept.flatMap((medium) => medium.images ?? [medium]));
  for (const turn of turns.splice(turns.indexOf(editing))) {
    turn.element.remove();
    turn.media.flatMap((medium) => medium.images ?? [medium]).filter((medium) => !stay.has(medium)).forEach(forget);
  }
  editing = null;
}

function submit() {
  const text = question.value.trim();
  if (asking || (!text && !attached.length) || !settingsAreSound()) return;
  if (images().length > 1 && at("frames").checked && !at("frames-fps").reportValidity()) return;
  question.value = "";
  const media = takeAttached();
  replaceEdited(media);
  const turn = addTurn(text, media);
  fit();
  showState();
  answer(turn);
}

function startAgain() {
  asking?.abort();
  asking = null;
  for (const turn of turns) turn.media.forEach(forget);
  turns = [];
  if (editing) stopEditing();
  at("turns").replaceChildren();
  at("welcome").hidden = false;
  showState();
  question.focus();
}

// ---- What the page shows

function showState() {
  at("ask").hidden = Boolean(asking);
  at("stop").hidden = !asking;
  at("ask").disabled = !question.value.trim() && !attached.length;
  at("editing").hidden = !editing;
  at("see-samples").hidden = !turns.length;
}

let following = true; // whether the end is kept in view: until somebody scrolls up to read

function follow() {
  if (following) at("scroll").scrollTop = at("scroll").scrollHeight;
}

function setUpScrolling() {
  const scroll = at("scroll");
  scroll.addEventListener("scroll", () => {
    following = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
  });
  new ResizeObserver(follow).observe(at("turns"));
}

/** As many rows as the question has. */
function fit() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
}

const STATES = {
  ready: ["ready", "Ready"],
  starting: ["busy", "Loading the model"],
  hung: ["busy", "Engine hangs"],
  restarting: ["busy", "Engine restarts"],
  failed: ["down", "Engine failed"],
  stopped: ["down", "Shutting down"],
  unreachable: ["down", "Not reachable"],
};

let watching = 0;

/** Shows the engine's state now and from time to time, more often while it is not ready. */
async function watch() {
  clearTimeout(watching);
  const state = await engineState();
  const [kind, words] = STATES[state] ?? ["busy", state];
  at("status").dataset.state = kind;
  at("status").querySelector("span").textContent = words;
  clearTimeout(watching);
  watching = setTimeout(watch, kind === "ready" ? 15000 : 1500);
}

async function findModel() {
  const { data } = await getJson("/v1/models");
  model = data[0].id;
  at("model").textContent = model;
  document.title = `${model} · Sightline playground`;
}

/** What kind of model it is: the one that comes with the package knows little, and families write coordinates in their own ways. */
async function learn() {
  const about = await getJson("/playground/about");
  coordinates = about.coordinates;
  at("embedded").hidden = !about.embedded;
}

async function greet() {
  try {
    await findModel();
  } catch (error) {
    at("model").textContent = error.status === 401 ? "API key needed" : "unknown model";
    if (error.status === 401) askForKey();
  }
}

function setUpComposer() {
  at("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  question.addEventListener("input", () => {
    fit();
    showState();
  });
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  at("stop").addEventListener("click", () => asking?.abort());
  at("new").addEventListener("click", startAgain);
  at("see-samples").addEventListener("click", startAgain);
  at("stop-editing").addEventListener("click", stopEditing);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (asking) asking.abort();
    else if (editing) stopEditing();
  });
}

setUpSettings(greet);
setUpAttachments();
setUpComposer();
setUpScrolling();
showState();
question.focus();
watch();
greet();
learn().catch(() => {});
setUpSamples(at("samples"), (text, media) => {
  if (!asking) answer(addTurn(text, media));
}).catch(() => { at("samples-title").hidden = true; });
getJson("/version").then(({ version }) => { at("version").textContent = `version ${version}`; }).catch(() => {});
