// The search box, and what was understood of it: one removable chip for each condition.

import { $, make } from "./dom.js";

const WRITE = 200; // ms without a key until the address is written

export class Search {
  constructor(app) {
    this.app = app;
    this.box = $("search");
    this.box.addEventListener("input", () => {
      if (!app.fields) return;
      this.#search(this.box.value);
      clearTimeout(this.writing);
      this.writing = setTimeout(() => app.writeAddress(), WRITE);
    });
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.box.value) {
        event.stopPropagation();
        event.preventDefault();
        this.set("");
      } else if (event.key === "ArrowDown") {
        event.preventDefault();
        app.list.enter();
      }
    });
    $("clear-filter").addEventListener("click", () => {
      for (const set of Object.values(app.fields.off)) set.clear();
      this.set("");
      this.box.focus();
    });
  }

  // As if typed; also from the address.
  set(text) {
    this.box.value = text;
    this.#search(text);
    this.app.writeAddress();
  }

  #search(text) {
    this.app.state.search = text.trim();
    this.app.filter.setText(text);
    this.app.recolor();
  }

  focus() {
    this.box.focus();
    this.box.select();
    this.box.scrollIntoView({ block: "nearest" });
  }

  update() {
    const { filter, fields, session } = this.app, n = session.patients, nobody = filter.clauses.length > 0 && !filter.shown;
    const hidden = Object.values(fields.off).reduce((sum, set) => sum + set.size, 0);
    $("found").textContent = filter.shown === n ? `All ${n.toLocaleString()} patients` : `${filter.shown.toLocaleString()} of ${n.toLocaleString()} patients`;
    if (nobody) $("found").textContent = filter.why();
    if (filter.missing.length && document.documentElement.dataset.columns) $("found").textContent += `. “${filter.missing.map((one) => one.text).join(" ")}” is ${filter.missing.some((one) => one.field === "confidence") ? "not predicted" : "not measured: run clocs measure STORE"}`;
    $("found").classList.toggle("error", nobody);
    $("clear-filter").disabled = !filter.clauses.length && !hidden;
    const focused = document.activeElement?.closest("#conditions") ? [...$("conditions").children].indexOf(document.activeElement) : -1;
    const words = filter.clauses.map((one) => one.words);
    if (JSON.stringify(words) !== this.words) {
      this.words = JSON.stringify(words);
      $("conditions").replaceChildren(...filter.clauses.map((one, i) => make("button", {
        type: "button", class: "condition", "aria-label": `Remove ${one.words}`, onclick: () => this.set(filter.remove(filter.clauses[i])),
      }, String(one.words), make("span", { "aria-hidden": "true" }, "×"))));
      if (focused >= 0) ($("conditions").children[Math.min(focused, words.length - 1)] ?? this.box).focus();
    }
  }
}
