// The list of patients: the map for keyboards and screen readers, one page at a time.

import { $, make } from "./dom.js";
import { NONE, round } from "./fields.js";

const LISTED = ["column prediction", "confidence", "column outcome", "column abstention"]; // in any case

const PAGE = 50;
const BY_NAME = new Intl.Collator("en", { numeric: true });

export class List {
  constructor(app) {
    this.app = app;
    this.page = 0;
    this.rows = [];
    $("list-back").addEventListener("click", () => this.turn(-1));
    $("list-next").addEventListener("click", () => this.turn(1));
    $("list-box").addEventListener("toggle", () => {
      if (!this.entered) this.update();
      this.entered = false;
    });
    $("list").addEventListener("keydown", (event) => this.#walk(event));
    $("list-sort").addEventListener("change", () => this.update());
    $("list-turn").addEventListener("click", (event) => {
      event.currentTarget.setAttribute("aria-pressed", String(event.currentTarget.getAttribute("aria-pressed") !== "true"));
      this.update();
    });
  }

  // What the list can be sorted by.
  offer() {
    const { fields } = this.app, chosen = $("list-sort").value;
    $("list-sort").replaceChildren(make("option", { value: "" }, "Name"), ...fields.names.map((name) => make("option", { value: name }, fields.all[name].title)));
    $("list-sort").value = fields.all[chosen] ? chosen : "";
  }

  // By a field, unknown values last; else by name.
  #sort() {
    const { fields, columns } = this.app, field = fields.all[$("list-sort").value], back = $("list-turn").getAttribute("aria-pressed") === "true" ? -1 : 1;
    if (!field) { if (back < 0) this.rows.reverse(); return; }
    const none = field.values.findIndex((one) => one.value === NONE);
    const rank = (row) => (field.numbers ? (Number.isNaN(field.numbers[row]) ? Infinity : field.numbers[row])
      : field.codes ? (field.codes[row] === none ? Infinity : field.codes[row])
        : columns.labels[row] ? Math.clz32(columns.labels[row] & -columns.labels[row]) * -1 : Infinity);
    this.rows.sort((a, b) => {
      const [x, y] = [rank(a), rank(b)];
      return x === y ? a - b : x === Infinity ? 1 : y === Infinity ? -1 : back * (x - y);
    });
  }

  // What further columns say of a patient: what is predicted, and what the list is sorted by.
  #more(row) {
    const { fields } = this.app, by = $("list-sort").value, field = LISTED.includes(by) ? null : fields.all[by];
    const said = (name) => { const one = fields.all[`column ${name}`], value = one?.values[one.codes[row]].value; return value === NONE ? null : value; };
    const sure = fields.all.confidence?.numbers[row], why = said("abstention"), made = said("prediction");
    const words = [made && `predicted ${made}${sure ? `, ${sure} %` : ""}`, why !== "predicted" && why, said("outcome")];
    if (field?.numbers && !Number.isNaN(field.numbers[row])) words.push(`${field.title} ${round(field.numbers[row])} ${field.unit}`.trim());
    if (field?.further && field.codes && !field.numbers) words.push(`${field.title.toLowerCase()}: ${field.values[field.codes[row]].value}`);
    return words.filter(Boolean).join(" · ");
  }

  // From the search box into the list.
  enter() {
    if (!$("list-box").open) {
      this.entered = $("list-box").open = true; // "toggle" comes later, and must not draw again: that would lose the focus
      this.update();
    }
    $("list").querySelector("button")?.focus();
  }

  turn(step) {
    this.page = Math.max(0, Math.min(Math.ceil(this.rows.length / PAGE) - 1, this.page + step));
    this.#draw();
  }

  // The patients that are not filtered out.
  update() {
    const { app } = this;
    $("list-count").textContent = "";
    if (!$("list-box").open || !app.filter.failed) return;
    if (app.names && this.sorted?.of !== app.names) { // else by pseudonym
      const order = Uint32Array.from(app.names, (_, i) => i).sort((a, b) => BY_NAME.compare(app.names[a], app.names[b]));
      this.sorted = { of: app.names, order };
    }
    this.rows = app.shownRows(this.sorted?.order);
    this.#sort();
    this.page = 0;
    this.#draw();
  }

  #draw() {
    const { app } = this, first = this.page * PAGE;
    $("list-count").textContent = this.rows.length ? `${(first + 1).toLocaleString()}–${Math.min(first + PAGE, this.rows.length).toLocaleString()} of ${this.rows.length.toLocaleString()}` : "no matches";
    $("list-back").disabled = !this.page;
    $("list-next").disabled = first + PAGE >= this.rows.length;
    $("list").replaceChildren(...this.rows.slice(first, first + PAGE).map((i) => make("li", {},
      make("button", { type: "button", "data-code": app.codeOf(i), "aria-current": String(app.state.patient === app.codeOf(i)), onclick: () => app.choose(app.codeOf(i)) },
        make("span", {}, app.nameOf(i)), make("span", {}, app.labelsOf(i).join(", ")), make("span", { class: "quiet" }, app.factsAt(i)), make("span", { class: "quiet further" }, this.#more(i))))));
  }

  mark() {
    for (const button of $("list").querySelectorAll("button")) button.setAttribute("aria-current", String(button.dataset.code === this.app.state.patient));
  }

  #walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...$("list").querySelectorAll("button")], at = all.indexOf(document.activeElement) + step;
    if (at < 0) $("search").focus();
    else all[Math.min(at, all.length - 1)]?.focus();
  }
}
