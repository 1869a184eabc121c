// Images, clips and PDFs: read from files, shown as thumbnails, put into messages.

const FILES = /\.(pdf|jpe?g|png|webp|gif|bmp|tiff?|ppm|avif|jp2|j2k)$/i;
const CLIPS = /\.(mkv|avi|mp4|mov|webm|m4v|mpe?g)$/i;

function kindOf(file) {
  if (file.type === "application/pdf" || /\.pdf$/i.test(file.name)) return "file";
  return file.type.startsWith("video/") || CLIPS.test(file.name) ? "video" : "image";
}

/** Why a file cannot be asked about, in a sentence that names it; "" if it can. */
export function refusal(file) {
  const known = /^(image|video)\//.test(file.type) || file.type === "application/pdf" || CLIPS.test(file.name) || FILES.test(file.name);
  if (!known) return `${file.name} is neither an image, a clip nor a PDF.`;
  return file.size ? "" : `${file.name} is empty.`;
}

/** A message of the server with the names of files in place of the data URLs that it names. */
export function withNames(message, media) {
  const all = media.flatMap((medium) => medium.images ?? [medium]);
  return message.replace(/data:\S*?… \(([\d,]+) characters\)/g, (url, count) => {
    const length = Number(count.replaceAll(",", ""));
    return all.find((medium) => medium.dataUrl.length === length)?.name ?? url;
  });
}

/** A file as we keep it: its kind, its bytes as a data URL for the request, an object URL to show it. */
export async function readMedium(file) {
  const kind = kindOf(file);
  return { kind, name: file.name || kind, dataUrl: await dataUrl(file), shownUrl: URL.createObjectURL(file) };
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

/** Images as one video, so many a second. */
export function asFrames(images, fps) {
  return { kind: "frames", name: `${images.length} frames`, images, fps, shownUrl: "" };
}

export function contentPart(medium) {
  if (medium.kind === "file") return { type: "file", file: { file_data: medium.dataUrl, filename: medium.name } };
  if (medium.kind === "frames") {
    return { type: "video_url", video_url: { url: medium.images.map((image) => image.dataUrl), fps: medium.fps } };
  }
  const url = { url: medium.dataUrl };
  return medium.kind === "video" ? { type: "video_url", video_url: url } : { type: "image_url", image_url: url };
}

/** A picture or a player; a box with the name where the browser does not know the format. */
export function preview(medium, small = false) {
  if (medium.kind === "file" || medium.kind === "frames") return box(medium);
  const shown = document.createElement(medium.kind === "video" ? "video" : "img");
  if (medium.kind === "video") {
    shown.muted = true;
    shown.loop = true;
    shown.preload = "metadata";
    shown.controls = !small;
    shown.setAttribute("aria-label", `Clip ${medium.name}`);
  } else {
    shown.alt = medium.name;
  }
  shown.addEventListener("error", () => shown.replaceWith(box(medium)), { once: true });
  shown.src = medium.shownUrl;
  return shown;
}

/** What to give back when a medium is forgotten. */
export function forget(medium) {
  for (const { shownUrl } of medium.images ?? [medium]) URL.revokeObjectURL(shownUrl);
}

const WORDS = { video: "▶ clip", image: "image", file: "PDF", frames: "▶" };

function box(medium) {
  const made = document.createElement("div");
  made.className = "clip";
  made.textContent = `${WORDS[medium.kind]} ${medium.name}`;
  return made;
}
