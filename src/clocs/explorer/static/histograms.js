// How the patients that pass all other filters are distributed; a click on a bar filters.

import { $, make } from "./dom.js";
import { BITS, meaning, NONE, round } from "./fields.js";

// Under a column: where it begins; the open ones at both ends say so.
const marked = ({ low, high }, step) => (low === -Infinity ? `<${round(high + step)}` : high === Infinity ? `${low}+` : String(low));

const FIELDS = ["age", "heart_rate", "pr", "qrs", "qtc_fridericia", "qrs_axis", "quality", "confidence", "sex", "labels"];

export class Histograms {
  constructor(app) {
    this.app = app;
    $("histograms-box").addEventListener("toggle", () => {
      app.state.bars = $("histograms-box").open;
      this.update();
      if (app.fields) app.writeAddress();
    });
  }

  update() {
    const { app } = this;
    if (!app.fields || !$("histograms-box").open) return;
    this.bars ??= this.#build();
    for (const { name, field, bars } of this.bars) {
      const counts = app.fields.countWhere(name, app.filter.failed, BITS[name]), clauses = app.filter.clauses.filter((one) => one.field === name);
      const most = Math.max(1, ...bars.map(({ i }) => counts[i]));
      for (const { button, i, value } of bars) {
        const on = clauses.some((one) => app.filter.holds(one, value)), text = `${counts[i].toLocaleString()} ${counts[i] === 1 ? "patient" : "patients"}`;
        button.firstChild.style.setProperty("--share", counts[i] / most);
        button.setAttribute("aria-pressed", String(on));
        button.classList.toggle("out", clauses.length > 0 && !on);
        button.setAttribute("aria-label", `${field.title} ${value.value}: ${text}`);
        button.title = [`${value.value}${field.unit ? ` ${field.unit}` : ""}: ${text}`, meaning(value)].filter(Boolean).join("\n");
        if (button.lastChild.tagName === "SMALL") button.lastChild.textContent = counts[i].toLocaleString();
      }
    }
  }

  #build() {
    const { app } = this, names = FIELDS.filter((name) => app.fields.names.includes(name));
    const made = names.map((name) => {
      const field = app.fields.all[name], across = Boolean(field.numbers);
      const used = field.values.map((value, i) => ({ value, i })).filter(({ value, i }) => (across ? value.value !== NONE : field.counts[i] && value.value !== NONE));
      if (name === "labels") used.sort((a, b) => field.counts[b.i] - field.counts[a.i]);
      const bars = used.map(({ value, i }) => ({
        value, i,
        button: make("button", { type: "button", "data-value": value.value, onclick: () => app.search.set(app.filter.toggled(name, value)) },
          make("i"), make("span", { "aria-hidden": "true" }, across ? marked(value, field.step) : value.value), !across && make("small")),
      }));
      return { name, field, bars };
    });
    $("histograms").replaceChildren(...made.map(({ name, field, bars }) => make("section", { class: field.numbers ? "columns-plot" : "rows-plot", "data-field": name },
      make("h2", {}, field.title, field.unit && make("small", {}, ` ${field.unit}`)), make("div", { role: "group", "aria-label": field.title }, ...bars.map(({ button }) => button)))));
    return made;
  }
}
