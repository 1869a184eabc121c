// A formula in LaTeX as MathML, which browsers draw themselves: KaTeX reads it (katex.js, with its licence in katex.LICENSE.txt).

import "./katex.js";

const LONGEST = 5000; // characters; longer ones stay text
const OPTIONS = { output: "mathml", throwOnError: true, strict: "ignore", trust: false, maxExpand: 200, maxSize: 20 };

/** What cannot be read stays as it was written. */
export function formula(source, display) {
  const place = document.createElement("span");
  place.className = display ? "formula display" : "formula";
  try {
    if (source.length > LONGEST) throw new Error("too long");
    globalThis.katex.render(source.trim(), place, { ...OPTIONS, displayMode: display });
  } catch {
    place.className = "formula unread";
    place.textContent = display ? `$$${source}$$` : `$${source}$`;
  }
  return place;
}
