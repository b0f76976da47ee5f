// The question that an upload with the amplitudes of no ECG raises: in which unit are its numbers?

import { make } from "./dom.js";

const LEAST = 0.03, MOST = 50; // mV that the leads of an ECG span, as `clocs.web.upload_unit` has it

// question: {name, span, mv}; answer: called with {unit, gain}.
export function ask(box, { name, span, mv }, answer) {
  const gain = make("input", { type: "number", id: "unit-gain", min: 1, max: 1e6, step: "any", placeholder: "200", "aria-label": "Steps per mV" });
  const go = make("button", { type: "button", id: "unit-go", disabled: true }, "Read it in this unit");
  const notes = new Map();
  let chosen = null;
  const perMv = { mV: () => 1, "µV": () => 1000, steps: () => Number(gain.value) || null };
  const update = () => {
    for (const [unit, note] of notes) note.textContent = described(span, perMv[unit]());
    go.disabled = !chosen || (chosen === "steps" && !(Number(gain.value) >= 1));
  };
  const choice = (unit, text, ...more) => {
    const note = make("small", {});
    notes.set(unit, note);
    return make("div", { class: "choice" }, make("label", {},
      make("input", { type: "radio", name: "asked-unit", value: unit, onchange: () => { chosen = unit; update(); } }), text), ...more, note);
  };
  gain.addEventListener("input", () => {
    box.querySelector("[value=steps]").checked = true;
    chosen = "steps";
    update();
  });
  box.replaceChildren(
    make("legend", {}, "In which unit are its numbers?"),
    make("p", {}, `The leads of ${name} span ${number(span)}${mv === null ? "" : `, which was read as ${number(mv)} mV`}. That is far from what is usual for ECGs.`),
    choice("mV", "mV"), choice("µV", "µV"),
    choice("steps", "ADC steps,", gain, "per mV"),
    make("div", { class: "end" }, go));
  go.onclick = () => answer({ unit: chosen, gain: chosen === "steps" ? gain.value : null });
  update();
  box.hidden = false;
  box.querySelector("input").focus();
}

function described(span, perMv) {
  if (!perMv) return "";
  const mv = span / perMv;
  return `leads span ${number(mv)} mV${mv < LEAST ? ": no ECG is so small" : mv > MOST ? ": no ECG is so large" : ""}`;
}

const number = (value) => (value >= 1e4 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3))));
