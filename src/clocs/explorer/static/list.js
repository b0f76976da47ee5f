// The list of patients: the map for keyboards and screen readers, one page at a time.

import { $, make } from "./dom.js";

const PAGE = 50;
const BY_NAME = new Intl.Collator("en", { numeric: true });

export class List {
  constructor(app) {
    this.app = app;
    this.page = 0;
    this.rows = [];
    $("list-search").addEventListener("input", () => this.update());
    $("list-back").addEventListener("click", () => this.turn(-1));
    $("list-next").addEventListener("click", () => this.turn(1));
    $("list-box").addEventListener("toggle", () => this.update());
    $("list").addEventListener("keydown", (event) => this.#walk(event));
    $("list-search").addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown") return;
      event.preventDefault();
      $("list").querySelector("button")?.focus();
    });
  }

  open() {
    $("list-box").open = true;
    this.update();
    $("list-search").focus();
    $("list-search").scrollIntoView({ block: "nearest" });
  }

  turn(step) {
    this.page = Math.max(0, Math.min(Math.ceil(this.rows.length / PAGE) - 1, this.page + step));
    this.#draw();
  }

  // The patients shown on the map that match the search.
  update() {
    if (!$("list-box").open || !this.app.look) return;
    const { app } = this, query = $("list-search").value.trim().toLowerCase();
    this.rows = [];
    for (let i = 0; i < app.session.patients; i++) {
      if (!app.look[4 * i + 3]) continue;
      if (!query || app.nameOf(i).toLowerCase().includes(query) || app.labelsOf(i).some((label) => label.toLowerCase().startsWith(query))) this.rows.push(i);
    }
    if (app.names) this.rows.sort((a, b) => BY_NAME.compare(app.names[a], app.names[b])); // else by pseudonym
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
        make("span", {}, app.nameOf(i)), make("span", {}, app.labelsOf(i).join(", ")), make("span", { class: "quiet" }, app.factsAt(i))))));
  }

  mark() {
    for (const button of $("list").querySelectorAll("button")) button.setAttribute("aria-current", String(button.dataset.code === this.app.state.patient));
  }

  #walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...$("list").querySelectorAll("button")], at = all.indexOf(document.activeElement) + step;
    if (at < 0) $("list-search").focus();
    else all[Math.min(at, all.length - 1)]?.focus();
  }
}
