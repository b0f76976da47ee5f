// A group of patients, lassoed, found or saved: its panel, its list, and going through its ECGs.

import * as api from "./api.js";
import { askForName, chooseCohort } from "./cohorts.js";
import { $, make, save, sentence, toast } from "./dom.js";
import { symbol } from "./fields.js";
import { showComparison } from "./group_comparison.js";

const PAGE = 20;
const OTHERS = "\0others"; // no cohort has this name

export const patients = (n) => `${n.toLocaleString()} ${n === 1 ? "patient" : "patients"}`;

export class Groups {
  constructor(app) {
    this.app = app;
    this.current = null; // {rows, title, about, lasso, on, cohort}
    this.comparing = false;
    this.bar = this.#makeBar();
    $("open-cohorts").addEventListener("click", () => chooseCohort({
      choose: (name) => this.open(name),
      renamed: (name, other) => { if (app.state.cohort === name) this.open(other); },
      removed: (name) => { if (app.state.cohort === name) app.clear(); },
    }));
    $("open-group").addEventListener("click", () => this.showFound());
    document.addEventListener("keydown", (event) => {
      const step = { j: 1, k: -1 }[event.key];
      if (!step || !this.at || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
      event.preventDefault();
      this.go(step);
    });
  }

  // The place, from 1, of the patient that is shown, while going through a group; else 0.
  get at() {
    const { state } = this.app;
    return this.current?.browsing && state.patient ? this.current.rows.indexOf(this.app.rowOf(state.patient)) + 1 : 0;
  }

  // Which group

  showLasso(rows) {
    const { lasso, on } = this.app.state;
    this.#show({ rows: [...rows], title: patients(rows.length), about: "Patients inside the lasso who are not filtered out", lasso, on });
  }

  // Everybody who is not filtered out.
  showFound() {
    const { app } = this;
    app.clear();
    const rows = app.shownRows();
    app.detail.begin();
    this.#show({ rows, title: patients(rows.length), about: rows.length === app.session.patients ? "All patients" : "Patients who are not filtered out" });
    app.detail.box.focus();
  }

  open(name) {
    Object.assign(this.app.state, { patient: null, upload: null, other: null, number: 0, lasso: null, tab: null, cohort: name });
    this.app.show({ push: true });
  }

  async showCohort(name) {
    const stop = this.app.detail.begin();
    try {
      await this.#load(name, stop);
      if (!stop.aborted) this.draw();
    } catch (error) {
      if (!stop.aborted) this.app.detail.showProblem(error);
    }
  }

  async #load(name, signal) {
    const found = await api.cohort(name, { signal });
    const about = `Saved cohort · ${patients(found.codes.length)}${found.elsewhere ? ` · ${found.elsewhere.toLocaleString()} more are not on this map` : ""}`;
    this.#set({ rows: found.codes.map((code) => this.app.rowOf(code)), title: found.name, about, cohort: found.name, file: found.file });
  }

  #set(group) {
    const browsing = group.cohort && this.app.state.patient;
    this.current = { page: 0, browsing: Boolean(browsing), ...group };
    this.comparing = false;
  }

  #show(group) {
    this.#set(group);
    this.draw();
  }

  codes(rows = this.current.rows) { return Array.from(rows, (row) => this.app.codeOf(row)); }

  // The panel

  draw() {
    const { app, current } = this, { rows } = current, { box } = app.detail;
    this.comparing = false;
    box.replaceChildren(
      make("div", { class: "who" }, make("h2", {}, current.title),
        make("span", { class: "end" }, make("button", { type: "button", class: "icon", "aria-label": "Close", title: "Close (Esc)", onclick: () => app.clear() }, "×")),
        make("p", { class: "quiet" }, current.about)),
      ...(rows.length ? [this.#tools(), ...app.fields.names.filter((name) => !(app.fields.all[name].further && app.fields.all[name].numbers)).map((name) => this.#table(name)), this.#list()]
        : [make("p", {}, "There is nobody in this group. Draw around some points, or change the search.")]),
      current.file ? make("p", { class: "fine" }, "For commands, on the machine of this explorer: ", make("code", {}, `clocs embed ENCODER STORE --cohort "${current.file}"`)) : "",
      make("p", { class: "fine" }, "Patients with several labels are counted once per label."));
  }

  #tools() {
    const { app, current } = this;
    const button = (text, id, onclick, title) => make("button", { type: "button", id, onclick, title }, text);
    const compare = make("select", { id: "compare-with", "aria-label": "Compare with", onchange: () => this.compareWith(compare.value) },
      make("option", { value: "" }, "Compare with …"), current.rows.length < app.session.patients && make("option", { value: OTHERS }, "all other patients"));
    api.cohorts().then((all) => compare.append(...all.filter((one) => one.patients && one.name !== current.cohort)
      .map((one) => make("option", { value: one.name }, `${one.name} (${one.patients.toLocaleString()})`))), () => {});
    return make("div", { class: "tools group-tools" },
      button("Browse ECGs", "browse-group", () => this.browse(0), "Go through the ECGs one by one (j: next, k: previous)"),
      button(current.cohort ? "Save a copy" : "Save as cohort", "save-group", () => this.save()), compare, make("span", { class: "spring" }),
      button("CSV", "group-csv", () => this.#download(), `Save the list of patients as a table${app.session.show_ids ? ", which clocs commands take (--cohort)" : ""}`));
  }

  #table(name) {
    const { fields, session } = this.app, { rows } = this.current, field = fields.all[name], counts = fields.countOf(name, rows);
    const listed = field.values.map((value, i) => ({ value, here: counts[i], all: field.counts[i] })).filter((row) => row.here)
      .sort((a, b) => (name === "labels" ? b.here - a.here : 0));
    return make("section", {}, make("h3", {}, field.title),
      make("table", { class: "counts" },
        make("thead", {}, make("tr", {}, make("td", {}), ...["Patients", "Share of group", "Share of all"].map((text) => make("th", { scope: "col" }, text)))),
        make("tbody", {}, ...listed.map(({ value, here, all }) => make("tr", { "data-label": value.value },
          make("td", {}, symbol(value.shape, fields.paint(value)), value.value), make("td", {}, here.toLocaleString()),
          make("td", {}, percent(here / rows.length)), make("td", { class: "quiet" }, percent(all / session.patients)))))));
  }

  #list() {
    const { app, current } = this, { rows } = current, list = make("ol", { class: "people", "aria-label": "Patients of the group" });
    const count = make("span", { class: "quiet" }), last = Math.ceil(rows.length / PAGE) - 1;
    const turn = (step) => {
      current.page = Math.max(0, Math.min(last, current.page + step));
      const first = current.page * PAGE;
      count.textContent = `${(first + 1).toLocaleString()}–${Math.min(first + PAGE, rows.length).toLocaleString()} of ${rows.length.toLocaleString()}`;
      back.disabled = !current.page;
      next.disabled = current.page === last;
      list.replaceChildren(...rows.slice(first, first + PAGE).map((row, i) => make("li", {},
        make("button", { type: "button", "data-code": app.codeOf(row), onclick: () => this.browse(first + i) },
          make("span", {}, app.nameOf(row)), make("span", {}, app.labelsOf(row).join(", ")), make("span", { class: "quiet" }, app.factsAt(row))))));
    };
    const back = make("button", { type: "button", class: "icon", "aria-label": "Previous patients", onclick: () => turn(-1) }, "‹");
    const next = make("button", { type: "button", class: "icon", "aria-label": "Next patients", onclick: () => turn(1) }, "›");
    turn(0);
    return make("section", {}, make("div", { class: "section-head" }, make("h3", {}, "Patients"), count, make("span", { class: "spring" }), last > 0 && back, last > 0 && next), list);
  }

  // One ECG after another

  browse(place) {
    const { app, current } = this;
    if (this.bar.contains(document.activeElement)) this.held = document.activeElement;
    current.browsing = true;
    app.choose(app.codeOf(current.rows[place]));
  }

  go(step) {
    const place = this.at - 1 + step;
    if (place >= 0 && place < this.current.rows.length) this.browse(place);
  }

  // Back from a comparison or a patient to the group; false if there is nowhere to go back to.
  leave() {
    const { app, current } = this;
    if (!current || !(this.comparing || this.at)) return false;
    current.browsing = false;
    if (this.comparing) this.draw();
    else if (current.cohort) this.open(current.cohort);
    else if (current.lasso) app.group(current.lasso, current.on);
    else {
      const rows = current;
      app.clear();
      app.detail.begin();
      this.#show(rows);
    }
    app.detail.box.focus();
    return true;
  }

  #makeBar() {
    const count = make("span", { role: "status" }), button = (text, label, title, onclick) => make("button", { type: "button", class: "icon", "aria-label": label, title, onclick }, text);
    const previous = button("‹", "Previous patient", "Previous patient of the group (k)", () => this.go(-1));
    const next = button("›", "Next patient", "Next patient of the group (j)", () => this.go(1));
    const back = make("button", { type: "button", title: "Back to the group (Esc)", onclick: () => this.leave() }, "Back to the group");
    const bar = make("nav", { id: "browse", "aria-label": "Group" }, previous, next, count, make("span", { class: "spring" }), back);
    return Object.assign(bar, { count, previous, next });
  }

  // Above the patient while going through a group; called whenever the panel has changed.
  async update() {
    const { state } = this.app, { bar } = this;
    if (state.patient && state.cohort && this.current?.cohort !== state.cohort) await this.#load(state.cohort).catch(() => {}); // from a link
    const { at } = this;
    if (!at) { bar.remove(); return; }
    const { rows, title, cohort } = this.current, { box } = this.app.detail;
    bar.count.textContent = `${at.toLocaleString()} of ${rows.length.toLocaleString()}${cohort ? ` in ${title}` : ""}`;
    bar.previous.disabled = at === 1;
    bar.next.disabled = at === rows.length;
    if (box.firstChild !== bar) box.prepend(bar);
    if (this.held) (this.held.disabled ? box : this.held).focus(); // it was taken out of the page
    this.held = null;
  }

  // Saving, comparing, exporting

  save() {
    askForName(this.current, this.codes(), (saved) => {
      toast(`Saved as ${saved.file}.`);
      this.open(saved.name);
    });
  }

  async compareWith(name) {
    if (!name) return;
    const { app, current } = this, stop = app.detail.begin(), own = new Set(current.rows);
    this.comparing = true;
    try {
      const codes = name === OTHERS ? this.codes(Array.from({ length: app.session.patients }, (_, row) => row).filter((row) => !own.has(row))) : (await api.cohort(name, { signal: stop })).codes;
      if (stop.aborted) return;
      const groups = [{ name: current.cohort ?? "This group", codes: this.codes() }, { name: name === OTHERS ? "All others" : name, codes }];
      await showComparison(app.detail.box, groups, { stop, beats: app.session.signals, back: () => this.leave() });
    } catch (error) {
      if (!stop.aborted) app.detail.showProblem(error);
    }
  }

  async #download() {
    try {
      save(`${this.current.cohort ?? "group"}.csv`, await api.groupTable(this.codes()));
    } catch (error) {
      toast(sentence(error.message));
    }
  }
}

export function percent(share) {
  return share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(100 * share)} %`;
}
