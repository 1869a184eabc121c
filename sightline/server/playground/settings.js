// How to answer, the key, the colours. Only the key outlives a reload, in this tab; and the colours, in this browser.

import { setKey } from "./api.js";

const at = (id) => document.getElementById(id);

/** The fields of a request that the controls decide. */
export function sampling() {
  const fields = {
    temperature: Number(at("temperature").value),
    top_p: Number(at("top-p").value),
    max_tokens: Number(at("max-tokens").value),
  };
  if (at("seed").value !== "") fields.seed = Number(at("seed").value);
  if (at("max-pixels").value !== "") fields.mm_processor_kwargs = { max_pixels: Number(at("max-pixels").value) };
  return fields;
}

export function systemPrompt() {
  return at("system").value.trim();
}

/** Whether all fields are sound; if not, shows the first that is not. */
export function settingsAreSound() {
  const wrong = ["max-tokens", "seed", "max-pixels"].map(at).find((field) => !field.checkValidity());
  if (!wrong) return true;
  showSettings(true);
  wrong.reportValidity();
  return false;
}

export function showSettings(shown) {
  at("settings").hidden = !shown;
  at("toggle-settings").setAttribute("aria-expanded", String(shown));
}

export function askForKey() {
  showSettings(true);
  at("key").focus();
}

/** `onKey` is called when another key was given. */
export function setUpSettings(onKey) {
  for (const id of ["temperature", "top-p"]) {
    const show = () => { at(`${id}-shown`).textContent = at(id).value; };
    at(id).addEventListener("input", show);
    show();
  }
  const key = at("key");
  key.value = sessionStorage.getItem("sightline-key") ?? "";
  setKey(key.value);
  key.addEventListener("change", () => {
    sessionStorage.setItem("sightline-key", key.value);
    setKey(key.value);
    onKey();
  });
  at("toggle-settings").addEventListener("click", () => showSettings(at("settings").hidden));
  showSettings(!matchMedia("(max-width: 900px)").matches);
  setUpTheme();
}

const THEMES = {
  "": ["◐", "Colours: as the system has them"],
  light: ["☀", "Colours: light"],
  dark: ["☾", "Colours: dark"],
};

function setUpTheme() {
  const button = at("theme");
  const show = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    [button.textContent, button.title] = THEMES[theme];
    button.setAttribute("aria-label", button.title);
  };
  let theme = localStorage.getItem("sightline-theme") ?? "";
  if (!(theme in THEMES)) theme = "";
  show(theme);
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    localStorage.setItem("sightline-theme", theme);
    show(theme);
  });
}
