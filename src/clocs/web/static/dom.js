// Small helpers for elements. Nothing here parses HTML.

export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A server's message as a sentence: "cannot read `x`" -> "Cannot read x."
export const sentence = (text) => (text.charAt(0).toUpperCase() + text.slice(1)).replaceAll("`", "") + (/[.?!]$/.test(text) ? "" : ".");

export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

let fading;
export function toast(text) {
  const box = $("toast");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(fading);
  fading = setTimeout(() => { box.hidden = true; }, 3500);
}

export function save(name, blob) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export function segments(box, choices, chosen, choose) {
  box.replaceChildren(...choices.map(([value, text]) => make("button", {
    type: "button", role: "radio", "aria-checked": String(value === chosen), "data-value": value,
    tabindex: value === chosen ? 0 : -1, onclick: () => choose(value),
  }, text)));
  box.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = choices.findIndex(([value]) => value === chosen);
    choose(choices[(at + step + choices.length) % choices.length][0]);
    box.querySelector("[aria-checked=true]")?.focus();
  };
}

// A patient's facts as one line: "63 years · female · test · chapman".
export function factsOf(patient, { dataset = true } = {}) {
  return [
    patient.age === null ? null : `${Math.round(patient.age)} years`,
    patient.sex, patient.split, dataset ? patient.dataset : null,
  ].filter(Boolean).join(" · ");
}

// A number with so many decimals and, below zero, a minus sign.
export function signed(value, digits) {
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) ? `−${text}` : text;
}
