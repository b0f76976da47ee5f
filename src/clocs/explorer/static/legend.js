// The legend: which color is what and how many there are; a click filters a value out, two isolate it.

import { $, make, segments } from "./dom.js";
import { BITS, gradient, meaning, NONE, round, symbol } from "./fields.js";

export class Legend {
  constructor(app) {
    this.app = app;
    $("color-more").addEventListener("change", (event) => app.colorBy(event.target.value || "labels"));
    this.pressed = null; // where a double click began: the legend may have moved since
  }

  update() {
    const { fields, state, filter } = this.app, field = fields.all[state.color];
    const theme = document.documentElement.dataset.theme, key = `${state.color} ${theme} ${fields.names} ${this.app.predicting}`;
    if (key !== this.key) {
      this.key = key;
      const names = fields.names, further = names.filter((name) => fields.all[name].further), more = $("color-more");
      segments($("color-by"), names.filter((name) => !further.includes(name)).map((name) => [name, fields.all[name].title]), state.color, (name) => this.app.colorBy(name));
      more.hidden = !further.length;
      more.replaceChildren(make("option", { value: "" }, "More …"), ...further.map((name) => make("option", { value: name }, fields.all[name].title)));
      if (this.app.predicting) more.append(make("option", { value: "", disabled: true }, this.app.predicting));
      more.value = further.includes(state.color) ? state.color : "";
      this.drawn = null;
    }
    const drawn = [field.known > 0, field.low, field.high, field.counts.at(-1) > 0].join(); // which new columns change
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      $("legend").replaceChildren(...(field.numbers ? this.#scale(field) : this.#entries(field)));
    }
    const counts = fields.countWhere(state.color, filter.failed, BITS[state.color]), off = fields.off[state.color];
    for (const entry of $("legend").querySelectorAll("[data-value]")) {
      const i = field.values.findIndex((one) => one.value === entry.dataset.value);
      entry.setAttribute("aria-pressed", String(!off.has(entry.dataset.value)));
      entry.querySelector("small").textContent = counts[i].toLocaleString();
    }
  }

  #entries(field) { return field.values.filter((_, i) => field.counts[i]).map((value) => this.#entry(value, field)); }

  #entry(value, field) {
    const { fields } = this.app, words = meaning(value, field.values);
    return make("button", {
      type: "button", "data-value": value.value, title: `${words ? `${words}\n` : ""}Click to filter out, double-click for this one alone.`,
      onclick: (event) => {
        if (event.detail < 2) this.pressed = value.value;
        this.#click(event.detail < 2 ? value.value : this.pressed, event.detail === 2);
      },
    }, symbol(value.shape, fields.paint(value)), value.value, make("small"));
  }

  // A second click shows one value alone, or all again.
  #click(value, twice) {
    const { fields, state } = this.app, field = fields.all[state.color], off = fields.off[state.color];
    if (twice) {
      const others = field.values.filter((one, i) => field.counts[i] && one.value !== value).map((one) => one.value);
      const alone = others.length > 0 && others.every((name) => off.has(name));
      off.clear();
      if (!alone) others.forEach((name) => off.add(name));
    } else if (!off.delete(value)) off.add(value);
    this.app.recolor();
  }

  #scale(field) {
    const bar = make("i", { class: "ramp" });
    bar.style.backgroundImage = gradient();
    const middle = field.step < 1 ? round((field.low + field.high) / 2) : Math.round((field.low + field.high) / 2), unknown = field.values.find((one) => one.value === NONE);
    return [
      field.known > 0 && make("div", { class: "scale-bar", role: "img", "aria-label": `${field.title} from ${field.low} to ${field.high} ${field.unit}, from dark to light` },
        bar, ...[`≤ ${field.low}`, middle, `≥ ${field.high} ${field.unit}`.trim()].map((text) => make("span", {}, text))),
      field.counts.at(-1) > 0 && this.#entry(unknown, field),
    ].filter(Boolean);
  }
}
