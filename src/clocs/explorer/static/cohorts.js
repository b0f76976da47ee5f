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

// Open, rename or delete a saved one; `renamed` and `removed` are told the names.
export async function chooseCohort({ choose, renamed, removed }) {
  const list = make("ul", { class: "people", "aria-label": "Saved cohorts" }), note = make("p", { class: "quiet", role: "status" }, "Reading …");
  const dialog = open("Saved cohorts", note, list, make("div", { class: "end" }, cancel("Close")));
  const failed = (problem) => Object.assign(note, { className: "error", textContent: sentence(problem.message), hidden: false });
  const show = async (name) => {
    const all = await api.cohorts();
    Object.assign(note, { className: "quiet", textContent: all.length ? "" : "No cohort is saved yet. Draw a lasso or search, and save the group.", hidden: all.length > 0 });
    list.replaceChildren(...all.map(row));
    (list.querySelector(`[data-name="${CSS.escape(name ?? "")}"]`) ?? list.querySelector("button:enabled") ?? dialog.querySelector(".end button")).focus();
  };
  // Deleting asks once more, in the place of the button.
  const row = (one) => {
    const change = (text, label, onclick) => make("button", { type: "button", class: "go", "aria-label": `${label} ${one.name}`, onclick }, text);
    const item = make("li", { class: "cohort" }, make("button", {
      type: "button", "data-name": one.name, disabled: Boolean(one.problem), onclick: () => { dialog.close(); choose(one.name); },
    }, make("span", {}, one.name), make("span", {}, one.problem ? sentence(one.problem) : `${one.patients.toLocaleString()} ${one.patients === 1 ? "patient" : "patients"}`),
    make("span", { class: "quiet" }, one.saved ? new Date(one.saved).toLocaleDateString() : "")),
    change("Rename", "Rename", () => ask()), change("Delete", "Delete", ({ target }) => {
      if (target.textContent !== "Delete") api.removeCohort(one.name).then(() => { removed(one.name); return show(); }).catch(failed);
      else sure(target, "Really?", "Really delete");
    }));
    item.lastChild.addEventListener("blur", ({ target }) => sure(target, "Delete", "Delete"));
    const sure = (button, text, label) => Object.assign(button, { textContent: text, ariaLabel: `${label} ${one.name}` });
    const ask = () => {
      const name = make("input", { type: "text", class: "new-name", maxlength: 60, value: one.name, "aria-label": `New name of ${one.name}` });
      const send = () => api.renameCohort(one.name, name.value).then((made) => { renamed(one.name, made.name); return show(made.name); }).catch(failed);
      name.addEventListener("keydown", (event) => {
        if (event.key === "Enter") { event.preventDefault(); send(); }
        if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); show(one.name); }
      });
      item.replaceChildren(name, make("button", { type: "button", class: "go", onclick: send }, "Save"));
      name.select();
    };
    return item;
  };
  await show().catch(failed);
}
