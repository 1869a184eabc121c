// Pictures and clips that come with the server, each with a question.

import { getBlob, getJson } from "./api.js";
import { readMedium } from "./media.js";

/** Fills the list; `choose(question, media)` is called when one is clicked. */
export async function setUpSamples(list, choose) {
  const samples = await getJson("/playground/samples");
  list.replaceChildren(...samples.map((sample) => {
    const item = document.createElement("li");
    item.append(sampleButton(sample, choose));
    return item;
  }));
}

function sampleButton(sample, choose) {
  const button = document.createElement("button");
  const pictures = document.createElement("span");
  const words = document.createElement("span");
  button.type = "button";
  pictures.className = "pictures";
  words.className = "words";
  words.textContent = sample.question;
  for (const medium of sample.media) pictures.append(thumbnail(medium));
  button.append(pictures, words);
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      choose(sample.question, await Promise.all(sample.media.map(load)));
    } finally {
      button.disabled = false;
    }
  });
  return button;
}

function thumbnail(medium) {
  if (medium.kind === "image") {
    const image = document.createElement("img");
    image.src = medium.url;
    image.alt = "";
    image.loading = "lazy";
    return image;
  }
  const clip = document.createElement("span");
  clip.className = "clip";
  clip.textContent = "▶ clip";
  return clip;
}

async function load(medium) {
  const blob = await getBlob(medium.url);
  return readMedium(new File([blob], medium.url.split("/").pop(), { type: blob.type }));
}
