// Images and clips: read from files, shown as thumbnails, put into messages.

const CLIPS = /\.(mkv|avi|mp4|mov|webm|m4v|mpe?g)$/i;

/** A file as we keep it: its kind, its bytes as a data URL for the request, an object URL to show it. */
export async function readMedium(file) {
  const kind = file.type.startsWith("video/") || CLIPS.test(file.name) ? "video" : "image";
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

export function contentPart(medium) {
  const url = { url: medium.dataUrl };
  return medium.kind === "video" ? { type: "video_url", video_url: url } : { type: "image_url", image_url: url };
}

/** A picture or a player; a box with the name where the browser does not know the format. */
export function preview(medium, small = false) {
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

function box(medium) {
  const made = document.createElement("div");
  made.className = "clip";
  made.textContent = `${medium.kind === "video" ? "▶ clip" : "image"} ${medium.name}`;
  return made;
}
