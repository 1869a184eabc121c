// Markdown of answers as elements. Text becomes text nodes and nothing else: a model may be made to write anything.
// Known: paragraphs, headings, lists, quotes, tables, rules, code, emphasis, links to the web, and formulas (formula.js).
// Pictures are shown as links, for a page must not load what an answer names.

import { formula } from "./formula.js";

const BLOCKS = {
  fence: /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)[^`]*$/,
  heading: /^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$/,
  rule: /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/,
  quote: /^ {0,3}> ?/,
  item: /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/,
  row: /^\s*\|.*\|\s*$/,
  columns: /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/,
  display: /^\s*(\$\$|\\\[)/,
};
const DEEPEST = 12; // quotes and lists inside each other; deeper ones stay text

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

/** A whole answer, or the part of it that has come so far. */
export function markdown(text, depth = 0) {
  const place = document.createDocumentFragment();
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const read = depth < DEEPEST ? [fence, display, heading, rule, quote, list, table] : [];
    const found = read.reduce((done, block) => done ?? block(lines, at, depth), null) ?? paragraph(lines, at);
    place.append(found.node);
    at = found.next;
  }
  return place;
}

function fence(lines, at) {
  const opened = BLOCKS.fence.exec(lines[at]);
  if (!opened) return null;
  const closing = new RegExp(`^ {0,3}${opened[1][0]}{${opened[1].length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  const code = element("code", lines.slice(at + 1, end).join("\n"));
  if (opened[2]) code.dataset.language = opened[2];
  return { node: element("pre", code), next: end + 1 };
}

function display(lines, at) {
  const opened = BLOCKS.display.exec(lines[at]);
  if (!opened) return null;
  const closing = opened[1] === "$$" ? "$$" : "\\]";
  const begun = lines.slice(at).join("\n").trimStart().slice(2);
  const end = begun.indexOf(closing);
  if (end < 0) return null;
  const after = begun.slice(end + 2);
  const [rest] = after.split("\n", 1);
  if (rest.trim()) return null; // text goes on in the same line
  return { node: element("p", formula(begun.slice(0, end), true)), next: at + begun.slice(0, end).split("\n").length };
}

function heading(lines, at) {
  const found = BLOCKS.heading.exec(lines[at]);
  return found && { node: element(`h${Math.min(6, found[1].length + 2)}`, inline(found[2])), next: at + 1 };
}

function rule(lines, at) {
  return BLOCKS.rule.test(lines[at]) ? { node: element("hr"), next: at + 1 } : null;
}

function quote(lines, at, depth) {
  if (!BLOCKS.quote.test(lines[at])) return null;
  let end = at;
  while (end < lines.length && BLOCKS.quote.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(BLOCKS.quote, ""));
  return { node: element("blockquote", markdown(inner.join("\n"), depth + 1)), next: end };
}

function list(lines, at, depth) {
  const first = BLOCKS.item.exec(lines[at]);
  if (!first) return null;
  const ordered = /\d/.test(first[2]);
  const made = element(ordered ? "ol" : "ul");
  if (ordered) made.start = parseInt(first[2], 10);
  const indent = first[1].length;
  let next = at;
  while (next < lines.length) {
    const item = BLOCKS.item.exec(lines[next]);
    if (!item || item[1].length > indent + 1 || item[1].length < indent || /\d/.test(item[2]) !== ordered) break;
    const inside = [lines[next].slice(item[0].length)];
    for (next += 1; next < lines.length; next += 1) {
      const spaces = /^\s*/.exec(lines[next])[0].length;
      const blank = !lines[next].trim();
      const goesOn = blank ? /^\s/.test(lines[next + 1] ?? "") : spaces > indent + 1 || (spaces > indent && !BLOCKS.item.test(lines[next]));
      if (!goesOn) break;
      inside.push(lines[next].slice(Math.min(spaces, item[0].length)));
    }
    made.append(element("li", ...tight(markdown(inside.join("\n"), depth + 1))));
    while (next < lines.length && !lines[next].trim() && BLOCKS.item.test(lines[next + 1] ?? "")) next += 1;
  }
  return { node: made, next };
}

/** An item of one paragraph stands without it. */
function tight(content) {
  const [first] = content.childNodes;
  return first?.tagName === "P" ? [...first.childNodes, ...[...content.childNodes].slice(1)] : [...content.childNodes];
}

function table(lines, at) {
  if (!BLOCKS.row.test(lines[at]) || !BLOCKS.columns.test(lines[at + 1] ?? "") || !lines[at + 1].includes("-")) return null;
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  const head = cells(lines[at]);
  const row = (line, tag) => element("tr", ...head.map((_, column) => element(tag, inline(cells(line)[column] ?? ""))));
  const body = element("tbody");
  let end = at + 2;
  for (; end < lines.length && BLOCKS.row.test(lines[end]); end += 1) body.append(row(lines[end], "td"));
  const scroll = element("div", element("table", element("thead", row(lines[at], "th")), body));
  scroll.className = "table";
  return { node: scroll, next: end };
}

function paragraph(lines, at) {
  const ends = (line) => !line.trim() || [BLOCKS.fence, BLOCKS.heading, BLOCKS.rule, BLOCKS.quote, BLOCKS.item].some((one) => one.test(line));
  let end = at + 1;
  while (end < lines.length && !ends(lines[end]) && !BLOCKS.display.test(lines[end])) end += 1;
  return { node: element("p", inline(lines.slice(at, end).join("\n"))), next: end };
}

// ---- Inside a line

// Each is bounded, so that no text takes long.
const INLINE = [
  [/^(`+)([^`]|[^`][\s\S]{0,2000}?[^`])\1(?!`)/, (found) => element("code", found[2].replace(/^ (.*) $/s, "$1"))],
  [/^\$\$([\s\S]{1,2000}?)\$\$/, (found) => formula(found[1], true)],
  [/^\\\[([\s\S]{1,2000}?)\\\]/, (found) => formula(found[1], true)],
  [/^\\\(([\s\S]{1,2000}?)\\\)/, (found) => formula(found[1], false)],
  [/^\$(?=\S)((?:\\.|[^$\\\n]){1,1000}?)(?<=\S)\$(?!\d)/, (found) => formula(found[1], false)],
  [/^\*\*(?=\S)([\s\S]{0,1000}?\S)\*\*/, (found, depth) => element("strong", inline(found[1], depth))],
  [/^__(?=\S)([\s\S]{0,1000}?\S)__(?!\w)/, (found, depth) => element("strong", inline(found[1], depth))],
  [/^\*(?=[^\s*])([\s\S]{0,1000}?[^\s*])\*(?!\*)/, (found, depth) => element("em", inline(found[1], depth))],
  [/^_(?=[^\s_])([\s\S]{0,1000}?[^\s_])_(?!\w)/, (found, depth) => element("em", inline(found[1], depth))],
  [/^~~(?=\S)([\s\S]{0,1000}?\S)~~/, (found, depth) => element("del", inline(found[1], depth))],
  [/^!?\[([^\]\n]{0,500})\]\((\S{1,2000}?)(?:\s+"[^"]*")?\)/, (found) => link(found[1] || found[2], found[2]) ?? found[0]],
  [/^<(https?:\/\/[^\s<>]+)>/, (found) => link(found[1], found[1]) ?? found[0]],
  [/^https?:\/\/[^\s<>()]*[^\s<>().,;:!?'"]/, (found) => link(found[0], found[0]) ?? found[0]],
  [/^\\([!-/:-@[-`{-~])/, (found) => found[1]],
];
const PLAIN = /^(?:[A-Za-z0-9 ,;'"=+%&]|[^\x00-\x7f])+/; // nothing can begin inside; "https" is looked for in it

function inline(text, depth = 0) {
  const place = document.createDocumentFragment();
  let rest = text;
  let said = "";
  while (rest) {
    const web = rest.search(/https?:\/\//);
    const plain = PLAIN.exec(web > 0 ? rest.slice(0, web) : web < 0 ? rest : "");
    const wordBefore = /\w$/.test(said);
    const found = plain || depth > DEEPEST ? null : INLINE.map(([form, make]) => [form.exec(rest), make]).find(([match]) => match);
    if (found && !(wordBefore && found[0][0].startsWith("_"))) {
      const [match, make] = found;
      place.append(...lines(said), make(match, depth + 1));
      said = "";
      rest = rest.slice(match[0].length);
    } else {
      const taken = plain ? plain[0] : rest[0];
      said += taken;
      rest = rest.slice(taken.length);
    }
  }
  place.append(...lines(said));
  return place;
}

/** Text with its line breaks. */
function lines(text) {
  return text.split("\n").flatMap((line, number) => (number ? [element("br"), line] : [line]));
}

/** Only to the web and to mail, in a page of its own that learns nothing of this one. */
function link(words, target) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  const made = element("a", words);
  made.href = url.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  return made;
}
