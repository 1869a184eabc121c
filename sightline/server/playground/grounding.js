// Boxes and points that an answer names, as models of each family write them, drawn on the image that was asked about.
//
//   Qwen        {"bbox_2d": [x1, y1, x2, y2], "label": "cat"}, {"point_2d": [x, y], "label": "eye"}, in JSON
//   Qwen2-VL    <|box_start|>(x1,y1),(x2,y2)<|box_end|>
//   GLM         <|begin_of_box|>[[x1, y1, x2, y2], …]<|end_of_box|>, or such a list alone
//
// Numbers are thousandths of the sides, or pixels of the image as the model sees it (Qwen2.5-VL); the server says which.

const BOXES = ["bbox_2d", "bbox", "box_2d"];
const POINTS = ["point_2d", "point"];
const LABELS = ["label", "name", "text", "text_content", "sub_label"];
const MOST = 200;

/** All marks of an answer: { box: [4 numbers] } or { point: [2 numbers] }, each with a label. */
export function marksOf(answer) {
  const found = [...objects(answer), ...tagged(answer), ...bare(answer)];
  return found.slice(0, MOST);
}

function numbers(value, count) {
  return Array.isArray(value) && value.length === count && value.every((one) => Number.isFinite(one) && one >= 0);
}

/** Objects of JSON that hold no others: of a list that was cut off, those that are complete. */
function objects(answer) {
  const marks = [];
  for (const [text] of answer.matchAll(/\{[^{}]*\}/g)) {
    let one;
    try {
      one = JSON.parse(text);
    } catch {
      continue;
    }
    const label = LABELS.map((name) => one[name]).find((value) => typeof value === "string") ?? "";
    for (const name of BOXES) if (numbers(one[name], 4)) marks.push({ box: one[name], label });
    for (const name of POINTS) if (numbers(one[name], 2)) marks.push({ point: one[name], label });
  }
  return marks;
}

function tagged(answer) {
  const pairs = answer.matchAll(/<\|box_start\|>\s*\((\d+),\s*(\d+)\),\s*\((\d+),\s*(\d+)\)\s*<\|box_end\|>/g);
  return [...pairs].map(([, ...corners]) => ({ box: corners.map(Number), label: "" }));
}

function bare(answer) {
  const texts = [...answer.matchAll(/<\|begin_of_box\|>([\s\S]*?)<\|end_of_box\|>/g)].map(([, inner]) => inner);
  if (/^\s*\[[\d\s.,[\]]*\]\s*$/.test(answer)) texts.push(answer);
  const marks = [];
  for (const text of texts) {
    let lists;
    try {
      lists = JSON.parse(text);
    } catch {
      continue;
    }
    for (const one of Array.isArray(lists?.[0]) ? lists : [lists]) {
      if (numbers(one, 4)) marks.push({ box: one, label: "" });
      else if (numbers(one, 2)) marks.push({ point: one, label: "" });
    }
  }
  return marks;
}

/** The image with its marks, once its size is known. `coordinates`: "thousandths" or "pixels"; `maxPixels`: what was asked for. */
export function drawn(medium, marks, coordinates, maxPixels) {
  const figure = document.createElement("figure");
  const image = document.createElement("img");
  const layer = document.createElement("div");
  figure.className = "marked";
  layer.className = "marks";
  image.alt = `${medium.name} with ${marks.length} ${marks.length === 1 ? "mark" : "marks"}`;
  image.addEventListener("load", () => {
    const { naturalWidth: width, naturalHeight: height } = image;
    const shrunk = Math.min(1, Math.sqrt((maxPixels ?? Infinity) / (width * height)));
    const sides = coordinates === "pixels" ? [width * shrunk, height * shrunk] : [1000, 1000];
    layer.replaceChildren(...marks.map((mark, number) => shape(mark, number, sides)));
  }, { once: true });
  image.src = medium.shownUrl;
  figure.append(image, layer);
  return figure;
}

function shape({ box, point, label }, number, [width, height]) {
  const made = document.createElement("div");
  const share = (value, side) => Math.min(100, (100 * value) / side);
  made.className = box ? "box" : "point";
  made.dataset.colour = String(number % 6);
  const [left, top] = box ? [Math.min(box[0], box[2]), Math.min(box[1], box[3])] : point;
  made.style.left = `${share(left, width)}%`;
  made.style.top = `${share(top, height)}%`;
  if (box) {
    made.style.width = `${share(Math.max(box[0], box[2]), width) - share(left, width)}%`;
    made.style.height = `${share(Math.max(box[1], box[3]), height) - share(top, height)}%`;
  }
  if (label) {
    const words = document.createElement("span");
    words.textContent = label;
    made.append(words);
  }
  return made;
}
