// The dialogs of saved cohorts: name a group, and choose one that was saved.

import * as api from "./api.js";
import { make, sentence } from "./dom.js";

function open(title, ...content) {
  const id = "cohort-dialog-title", opener = document.activeElement;
  const dialog = make("dialog", { id: "cohort-dialog", "aria-labelledby": id }, make("form", { method: "dialog" }, make("h2", { id }, title), ...content));
  dialog.addEventListener("close", () => { dialog.remove(); if (opener?.isConnected) opener.focus(); });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// No submit button, or Enter would press it.
const cancel = (text = "Cancel") => make("button", { type: "button", onclick: (event) => event.target.closest("dialog").close() }, text);

// Ask for a name until the group is saved. A name that is taken is replaced only when asked to.
export function askForName(group, codes, done) {
  const name = make("input", { id: "cohort-name", type: "text", maxlength: 60, required: true, autocomplete: "off", spellcheck: "false" });
  const error = make("p", { class: "error", role: "alert", hidden: true });
  const replace = make("button", { type: "button", hidden: true, onclick: () => send(true) }, "Replace it");
  const keep = make("button", { type: "submit", class: "primary" }, "Save");
  const dialog = open("Save as cohort",
    make("p", { class: "quiet" }, `${codes.length.toLocaleString()} ${codes.length === 1 ? "patient" : "patients"}. A table of their IDs is saved on the machine that runs this explorer; everybody who may open the explorer sees the cohort.`),
    make("label", { class: "name" }, "Name", name), error, make("div", { class: "end" }, replace, cancel(), keep));
  name.focus();
  name.addEventListener("input", () => { error.hidden = replace.hidden = true; });
  const send = async (replacing) => {
    keep.disabled = replace.disabled = true;
    try {
      const saved = await api.saveCohort(name.value, codes, replacing);
      dialog.close();
      done(saved);
    } catch (problem) {
      error.textContent = sentence(problem.message);
      error.hidden = false;
      replace.hidden = problem.status !== 409;
      name.focus();
    } finally {
      keep.disabled = replace.disabled = false;
    }
  };
  dialog.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    send(false);
  });
}

export async function chooseCohort(choose) {
  const list = make("ul", { class: "people", "aria-label": "Saved cohorts" }), note = make("p", { class: "quiet", role: "status" }, "Reading …");
  const dialog = open("Saved cohorts", note, list, make("div", { class: "end" }, cancel("Close")));
  try {
    const all = await api.cohorts();
    note.textContent = all.length ? "" : "No cohort is saved yet. Draw a lasso or search, and save the group.";
    note.hidden = all.length > 0;
    list.replaceChildren(...all.map((one) => make("li", {}, make("button", {
      type: "button", disabled: Boolean(one.problem), onclick: () => { dialog.close(); choose(one.name); },
    }, make("span", {}, one.name), make("span", {}, one.problem ? sentence(one.problem) : `${one.patients.toLocaleString()} ${one.patients === 1 ? "patient" : "patients"}`),
    make("span", { class: "quiet" }, one.saved ? new Date(one.saved).toLocaleDateString() : "")))));
    list.querySelector("button:enabled")?.focus();
  } catch (problem) {
    note.className = "error";
    note.textContent = sentence(problem.message);
  }
}
