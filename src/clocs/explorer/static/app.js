// The page: the current selection, and everything that depends on it.

import * as address from "./address.js";
import * as api from "./api.js";
import { Compare } from "./compare.js";
import { $, make, save, segments, sentence, toast } from "./dom.js";
import { Fields, symbol } from "./fields.js";
import { Groups } from "./groups.js";
import { List } from "./list.js";
import { PatientMap } from "./map.js";
import { Detail } from "./patient.js";
import { Picking } from "./pick.js";
import { Rooms } from "./rooms.js";
import * as upload from "./upload.js";

const THEME = "clocs-theme";

class App {
  constructor() {
    this.state = address.read();
    this.detail = new Detail(this);
    this.comparison = new Compare(this);
    this.picking = new Picking();
    this.map = new PatientMap($("map"), $("points"), $("marks"), $("tip"));
    this.list = new List(this);
    this.groups = new Groups(this);
  }

  async start() {
    setTheme(localStorage.getItem(THEME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
    this.#listen();
    const [session, everyone] = await Promise.all([api.session(), api.map()]);
    this.session = session;
    this.columns = everyone.arrays;
    this.digits = this.columns.codes.shape[1];
    this.rows = null;
    this.fields = new Fields(session, this.columns);
    if (!this.fields.all[this.state.colour]) this.state.colour = "labels";
    for (const [field, value] of this.state.hidden) this.fields.off[field]?.add(value);
    $("summary").textContent = [session.title, `${session.patients.toLocaleString()} patients`].filter(Boolean).join(" · ");
    $("open-upload").hidden = !session.uploads;
    this.rooms = new Rooms(this, session.rooms);
    this.map.describe = (row) => [this.nameOf(row), this.labelsOf(row).join(", ") || "no label", this.factsAt(row)];
    this.map.setPlaces(this.columns.positions);
    this.recolour();
    await this.map.drawn();
    document.documentElement.dataset.ready = "map";
    [this.histogram, this.names] = await Promise.all([api.distances(), session.show_ids ? api.names() : null]);
    await this.show();
    document.documentElement.dataset.ready = "all";
    this.kind = everyone.facts.projection.kind;
    this.#follow(everyone.facts.projection);
  }

  // Names and facts of a row

  codeOf(row) {
    return Array.from(this.columns.codes.subarray(row * this.digits, (row + 1) * this.digits), (b) => b.toString(16).padStart(2, "0")).join("");
  }

  rowOf(code) {
    if (!this.rows) {
      this.rows = new Map();
      for (let i = 0; i < this.session.patients; i++) this.rows.set(this.codeOf(i), i);
    }
    return this.rows.get(code) ?? -1;
  }

  nameOf(row) { return this.names?.[row] ?? `Patient ${this.codeOf(row)}`; }

  labelsOf(row) { return this.session.labels.filter((_, i) => this.columns.labels[row] & (1 << i)); }

  factsAt(row) {
    const { age, sex, split, dataset } = this.columns, { session } = this;
    return [
      age[row] === session.unknown_age ? null : `${age[row]} years`, session.sexes[sex[row]] === "unknown" ? null : session.sexes[sex[row]],
      !split || session.splits[split[row]] === "unknown" ? null : session.splits[split[row]], session.datasets.length > 1 ? session.datasets[dataset[row]] : null,
    ].filter(Boolean).join(" · ");
  }

  // The selection

  choose(code, { focus = false, reveal = false } = {}) {
    if (this.picking.opener) { this.compare(code); return; }
    Object.assign(this.state, { patient: code, upload: null, other: null, number: 0, lasso: null, room: null });
    this.show({ push: true, focus, reveal });
  }

  showUpload(code) {
    Object.assign(this.state, { patient: null, upload: code, other: null, number: 0, lasso: null, room: null, cohort: null });
    this.show({ push: true });
  }

  compare(code) {
    if (code) this.opener = this.picking.stop() ?? document.activeElement;
    this.state.other = code;
    this.show({ push: true });
  }

  group(polygon) {
    Object.assign(this.state, { patient: null, upload: null, other: null, lasso: polygon, cohort: null });
    this.show({ push: true });
  }

  clear() {
    if (this.detail.box.contains(document.activeElement)) $("map").focus();
    Object.assign(this.state, { patient: null, upload: null, other: null, number: 0, lasso: null, room: null, cohort: null });
    this.show({ push: true });
  }

  setRecording(number) {
    this.state.number = number;
    this.show();
  }

  // Layout, gain, speed or overlay of the ECG paper.
  setPaper(change) {
    Object.assign(this.state, change);
    address.write(this.state, this.fields.off, false);
  }

  enter(room) {
    this.state.room = room;
    this.show({ push: true });
  }

  async show({ push = false, focus = false, reveal = false } = {}) {
    const { state } = this, compared = !$("compare").hidden;
    address.write(state, this.fields.off, push);
    const comparing = Boolean(state.other && (state.patient || state.upload));
    const room = this.rooms.show(state.room);
    $("compare").hidden = room || !comparing;
    $("explore").hidden = room || comparing;
    if (!comparing) this.comparison.close();
    this.list.mark();
    const key = JSON.stringify([state.patient, state.upload, state.number, state.lasso, state.cohort]);
    if (key !== this.shownKey || !this.near) {
      this.shownKey = key;
      await this.#detail();
      await this.groups.update();
    }
    if (comparing && state.other) {
      const left = state.upload ? { upload: state.upload } : { patient: state.patient, number: state.number };
      await this.comparison.show(left, { patient: state.other, number: 0 }, this.near?.find((n) => n.code === state.other));
    } else if (compared) (this.opener?.isConnected ? this.opener : this.detail.box).focus();
    if (reveal) this.detail.reveal();
    if (focus) this.detail.box.querySelector(".neighbours .open")?.focus();
  }

  async #detail() {
    const { state } = this;
    const clean = { selected: -1, near: [], visitor: null, polygon: null };
    this.near = [];
    if (state.lasso) {
      this.map.mark({ ...clean, polygon: state.lasso });
      this.detail.showGroup(this.map.scatter.inside(state.lasso));
    } else if (state.upload) {
      this.map.mark(clean);
      const found = await this.detail.showUpload(state.upload);
      if (found) this.#mark({ ...clean, visitor: found.position }, found.neighbours);
    } else if (state.patient) {
      const row = this.rowOf(state.patient);
      this.map.mark({ ...clean, selected: row });
      if (row >= 0) this.map.reveal(row);
      const found = await this.detail.showPatient(state.patient, state.number);
      if (found) this.#mark({ ...clean, selected: row }, found.near);
    } else if (state.cohort) {
      this.map.mark(clean);
      await this.groups.showCohort(state.cohort);
    } else {
      this.map.mark(clean);
      this.detail.showIntro();
    }
  }

  #mark(marks, near) {
    this.near = near;
    this.map.mark({ ...marks, near: near.map((n) => n.row) });
  }

  // The rows of patients who are not hidden.
  shownRows() { return Array.from({ length: this.session.patients }, (_, row) => row).filter((row) => this.look[4 * row + 3]); }

  // The map's colours and the legend

  recolour() {
    const { look, shown } = this.fields.look(this.state.colour);
    this.look = look;
    this.map.setLook(look);
    this.shown = shown;
    this.#legend();
    this.list.update();
    address.write(this.state, this.fields.off, false);
    if (this.state.lasso && this.shownKey) this.detail.showGroup(this.map.scatter.inside(this.state.lasso));
  }

  #legend() {
    const { fields, state } = this, field = fields.all[state.colour], off = fields.off[state.colour];
    segments($("colour-by"), fields.names.map((name) => [name, fields.all[name].title]), state.colour, (name) => {
      state.colour = name;
      this.recolour();
    });
    const listed = field.values.map((value, i) => ({ value, count: field.counts[i] })).filter(({ count }) => count);
    const before = document.activeElement?.closest("#legend") && document.activeElement.dataset.value;
    $("legend").replaceChildren(...listed.map(({ value, count }) => make("button", {
      type: "button", "data-value": value.value, "aria-pressed": String(!off.has(value.value)), title: "Click to show or hide. Double-click to show only this.",
      onclick: (event) => {
        if (event.detail === 2) { // double click: show only this value, or all again
          const others = listed.map((one) => one.value.value).filter((name) => name !== value.value);
          const alone = others.every((name) => off.has(name));
          off.clear();
          if (!alone) others.forEach((name) => off.add(name));
        } else if (!off.delete(value.value)) off.add(value.value);
        this.recolour();
      },
    }, symbol(value.shape, fields.paint(value)), value.value, make("small", {}, count.toLocaleString()))),
    ...(Object.values(fields.off).some((set) => set.size) ? [make("button", { type: "button", id: "show-all", onclick: () => {
      for (const set of Object.values(fields.off)) set.clear();
      this.recolour();
    } }, `Show all (now ${this.shown.toLocaleString()} of ${this.session.patients.toLocaleString()})`)] : []));
    if (before) $("legend").querySelector(`[data-value="${CSS.escape(before)}"]`)?.focus();
  }

  // Switch to UMAP when it is ready

  async #follow(projection) {
    const note = $("map-note");
    while (projection.state === "working") {
      note.hidden = false;
      note.textContent = `Showing PCA while UMAP is running: ${projection.description} (${Math.round(100 * projection.progress)} %)`;
      await new Promise((done) => { setTimeout(done, 1000); });
      projection = await api.projection().catch(() => projection);
    }
    note.hidden = projection.kind === "umap";
    note.textContent = projection.description;
    document.documentElement.dataset.map = projection.kind;
    if (projection.kind !== "umap" || this.kind === "umap") return;
    this.kind = "umap";
    const { arrays } = await api.positions();
    this.columns.positions = arrays.positions;
    this.map.touched = false;
    this.map.setPlaces(arrays.positions);
    if (this.state.upload || this.state.lasso) { this.shownKey = null; this.show(); }
  }

  #listen() {
    const { map } = this;
    map.addEventListener("choose", (event) => {
      if (event.detail >= 0) this.choose(this.codeOf(event.detail), { reveal: true });
    });
    map.addEventListener("group", (event) => { map.setLasso(false); this.group(event.detail); });
    map.addEventListener("mode", (event) => $("lasso").setAttribute("aria-pressed", String(event.detail)));
    $("lasso").addEventListener("click", () => map.setLasso(!map.lassoing));
    $("map-in").addEventListener("click", () => map.zoom(1.5));
    $("map-out").addEventListener("click", () => map.zoom(1 / 1.5));
    $("map-fit").addEventListener("click", () => map.fit());
    $("map-png").addEventListener("click", async () => {
      const field = this.fields.all[this.state.colour], off = this.fields.off[this.state.colour];
      const legend = field.values.filter((value, i) => field.counts[i] && !off.has(value.value)).map((value) => [value.value, this.fields.paint(value)]);
      save("map.png", await map.picture(`${$("summary").textContent} · ${field.title.toLowerCase()}`, legend));
    });
    $("theme").addEventListener("click", () => this.toggleTheme());
    $("open-keys").addEventListener("click", () => $("keys").showModal());
    $("copy-link").addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(location.href);
        toast("Link to this view copied.");
      } catch {
        toast(location.href);
      }
    });
    window.addEventListener("popstate", () => {
      if (!this.session) return;
      this.state = address.read();
      if (!this.fields.all[this.state.colour]) this.state.colour = "labels";
      for (const set of Object.values(this.fields.off)) set.clear();
      for (const [field, value] of this.state.hidden) this.fields.off[field]?.add(value);
      this.recolour();
      this.show();
    });
    document.addEventListener("keydown", (event) => this.#key(event));
    upload.listen(this);
  }

  toggleTheme() {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem(THEME, theme);
    setTheme(theme);
    if (!this.fields) return;
    this.recolour();
    this.detail.view?.draw();
    this.comparison.view?.draw();
    this.shownKey = null;
    this.show();
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.key !== "Escape") return;
    const actions = {
      "?": () => $("keys").showModal(),
      "/": () => this.list.open(),
      m: () => $("map").focus(),
      e: () => (document.querySelector("#compare:not([hidden]) canvas") ?? $("ecg"))?.focus(),
      n: () => this.detail.box.querySelector(".neighbours .open")?.focus(),
      l: () => this.map.setLasso(!this.map.lassoing),
      u: () => this.session?.uploads && $("open-upload").click(),
      t: () => this.toggleTheme(),
      c: () => (this.state.other ? this.comparison : this.detail).view?.measure(),
      Escape: () => {
        if (this.picking.opener) this.picking.stop().focus();
        else if (this.map.lassoing) this.map.setLasso(false);
        else if (this.state.room) this.enter(null);
        else if (this.state.other) this.compare(null);
        else if (!this.groups.leave()) this.clear();
      },
    };
    if (!actions[event.key] || !this.session) return;
    event.preventDefault();
    actions[event.key]();
  }
}

function setTheme(theme) { document.documentElement.dataset.theme = theme; }

const app = new App();
globalThis.clocs = app; // for tests and debugging
app.start().catch((error) => {
  $("detail").replaceChildren(make("p", { class: "error", role: "alert" }, sentence(error.message)));
  $("summary").textContent = "";
});
