// What an answer took and what was known already, from the response's usage and metadata.

const STAGES = [
  ["fetch", "Fetch", "host", "Bytes: base64 or a download, and their digest"],
  ["header", "Header", "host", "Format and size, from the first bytes"],
  ["prompt", "Prompt", "host", "Template, tokens, positions"],
  ["queue", "Queue", "wait", "Wait for the first step"],
  ["decode", "Decode pixels", "vision", "Compressed bytes to pixels"],
  ["preprocess", "Resize and cut", "vision", "Pixels to patches"],
  ["encode", "Vision tower", "vision", "Patches to embedding rows"],
  ["prefill", "Prefill", "language", "The prompt through the language model"],
];
const OF_MEDIA = new Set(["fetch", "header", "decode", "preprocess", "encode"]);
const OF_PIXELS = new Set(["decode", "preprocess", "encode"]);
const GROUPS = [["host", "host"], ["vision", "vision"], ["language", "language model"], ["wait", "waiting"]];

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

export function duration(ms) {
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
}

/** Fills `place` with the facts and the stages of an answer. */
export function showTrace(place, usage, metadata) {
  place.replaceChildren();
  if (usage) place.append(facts(usage, metadata));
  if (metadata) place.append(timeline(usage, metadata));
  place.hidden = !place.childElementCount;
}

function facts(usage, metadata) {
  const list = element("ul", "facts");
  const add = (name, value, good = false) => {
    const item = element("li", good ? "good" : "");
    item.append(element("b", "", value), ` ${name}`);
    list.append(item);
  };
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  if (metadata) {
    const times = metadata.timings_ms;
    add("to the first token", duration(times.ttft));
    add("in all", duration(times.e2e));
    if (times.per_token > 0) add("tokens/s", (1000 / times.per_token).toFixed(times.per_token < 100 ? 0 : 1));
  }
  add("tokens in", String(usage.prompt_tokens));
  add("of them cached", String(cached), cached > 0);
  add("tokens out", String(usage.completion_tokens));
  if (metadata) {
    const known = metadata.images + metadata.videos - metadata.encoded_items;
    if (metadata.encoded_items) add(`${noun(metadata, metadata.encoded_items)} encoded`, String(metadata.encoded_items));
    if (known) add(`${noun(metadata, known)} cached`, String(known), true);
  }
  return list;
}

function noun({ images, videos }, count) {
  const word = videos ? (images ? "item" : "clip") : "image";
  return count === 1 ? word : `${word}s`;
}

function timeline(usage, metadata) {
  const made = element("details", "timeline");
  made.open = true;
  made.append(element("summary", "", "Timeline of the stages"), stageTable(usage, metadata), legend());
  return made;
}

function stageTable(usage, metadata) {
  const times = metadata.timings_ms;
  const media = metadata.images + metadata.videos;
  const rows = [];
  let at = 0;
  for (const [stage, name, group, title] of STAGES) {
    if (OF_MEDIA.has(stage) && !media) continue;
    const known = OF_PIXELS.has(stage) && metadata.encoded_items === 0;
    const ms = times[stage] ?? 0;
    rows.push({ stage, name, group, title, known, start: at, ms });
    at += ms;
  }
  const rest = times.ttft - at;
  if (rest > 0.05) {
    rows.push({ stage: "other", name: "Other", group: "wait", title: "Between processes, and all that has no name", start: at, ms: rest });
    at += rest;
  }
  const tokens = usage?.completion_tokens ?? 0;
  const generating = Math.max(0, times.e2e - times.ttft);
  rows.push({ stage: "generate", name: "Generate", group: "language", title: `The other tokens of ${tokens}`, start: at, ms: generating });
  const total = Math.max(times.e2e, at + generating, 0.001);

  const table = element("table", "stages");
  const body = element("tbody");
  for (const row of rows) body.append(tableRow(row, total));
  table.append(body);
  return table;
}

function tableRow(row, total) {
  const line = element("tr", row.known ? "known" : "");
  line.dataset.stage = row.stage;
  const name = element("th", "", row.name);
  name.scope = "row";
  name.title = row.title;
  const cell = element("td");
  const track = element("div", "track");
  if (!row.known && row.ms > 0) {
    const bar = element("div", "bar");
    bar.dataset.group = row.group;
    bar.style.left = `${Math.min(99.5, (100 * row.start) / total)}%`;
    bar.style.width = `${(100 * row.ms) / total}%`;
    track.append(bar);
  }
  cell.append(track);
  line.append(name, cell, element("td", "", row.known ? "✓ cached" : duration(row.ms)));
  return line;
}

function legend() {
  const list = element("div", "legend");
  list.setAttribute("aria-hidden", "true");
  for (const [group, name] of GROUPS) {
    const item = element("span");
    const swatch = element("i");
    swatch.dataset.group = group;
    item.append(swatch, name);
    list.append(item);
  }
  return list;
}
