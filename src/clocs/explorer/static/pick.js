// "Compare with …": any other patient, by name or from the map or the list.

import { $, make } from "./dom.js";

// While it runs, the patient chosen on the map or in the list is compared with the one that is open.
export class Picking {
  opener = null; // what started it, and gets the focus back

  start(opener) {
    this.opener = opener;
    $("pick-note").hidden = false;
    $("map").focus();
  }

  stop() {
    const { opener } = this;
    this.opener = null;
    $("pick-note").hidden = true;
    return opener;
  }
}

export function comparePicker(app) {
  const problem = make("p", { class: "error", role: "alert", hidden: true });
  const input = make("input", { type: "search", "aria-label": "Patient to compare with", placeholder: app.names ? "Patient ID" : "Patient, such as 3f09…", autocomplete: "off", spellcheck: "false" });
  const close = () => { form.hidden = true; button.setAttribute("aria-expanded", "false"); };
  const form = make("form", {
    class: "pick", hidden: true,
    onsubmit: (event) => {
      event.preventDefault();
      const code = find(app, input.value);
      problem.hidden = Boolean(code);
      problem.textContent = code ? "" : `There is no patient ${input.value.trim() || "without a name"}. Type a whole name, or pick one on the map.`;
      if (code) { close(); button.focus(); app.compare(code); } else input.focus();
    },
    onkeydown: (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
      button.focus();
    },
  }, input, make("button", {}, "Compare"), make("button", { type: "button", onclick: () => { close(); app.picking.start(button); } }, "Pick on the map"), problem);
  const button = make("button", {
    type: "button", "aria-expanded": "false", title: "Compare with any patient",
    onclick: () => {
      form.hidden = !form.hidden;
      button.setAttribute("aria-expanded", String(!form.hidden));
      if (!form.hidden) input.focus();
    },
  }, "Compare with …");
  return { button, form };
}

// A patient's code, from their name or the beginning of their code if only one begins so.
function find(app, text) {
  const wanted = text.trim().toLowerCase().replace(/^patient\s+/, "");
  if (!wanted) return null;
  const named = app.names?.findIndex((name) => name.toLowerCase() === wanted) ?? -1;
  if (named >= 0) return app.codeOf(named);
  if (app.names || !/^[0-9a-f]+$/.test(wanted)) return null;
  const found = [];
  for (let row = 0; row < app.session.patients && found.length < 2; row++) {
    const code = app.codeOf(row);
    if (code.startsWith(wanted)) found.push(code);
  }
  return found.length === 1 ? found[0] : null;
}
