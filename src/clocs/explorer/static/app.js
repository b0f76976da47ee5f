// The page: the current selection, and everything that depends on it.

import * as address from "./address.js";
import * as api from "./api.js";
import { Compare } from "./compare.js";
import { $, make, save, sentence, toast } from "./dom.js";
import { Fields } from "./fields.js";
import { Filter } from "./filter.js";
import { Groups } from "./groups.js";
import { Histograms } from "./histograms.js";
import { press } from "./keys.js";
import { Legend } from "./legend.js";
import { List } from "./list.js";
import { PatientMap } from "./map.js";
import { caption, overlay } from "./overlay.js";
import { Detail } from "./patient.js";
import { Picking } from "./pick.js";
import { Tabs } from "./tabs.js";
import { Search } from "./search.js";
import { SecondMap } from "./second_map.js";
import * as upload from "./upload.js";

const THEME = "clocs-theme";

class App {
  constructor() {
    this.state = address.read();
    this.detail = new Detail(this);
    this.comparison = new Compare(this);
    this.picking = new Picking();
    this.map = new PatientMap($("map"), $("points"), $("marks"), $("tip"));
    this.second = new SecondMap(this);
    this.list = new List(this);
    this.groups = new Groups(this);
    this.filter = new Filter(this);
    this.legend = new Legend(this);
    this.search = new Search(this);
    this.histograms = new Histograms(this);
    $("histograms-box").open = this.state.bars;
  }

  async start() {
    setTheme(localStorage.getItem(THEME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
    this.#listen();
    const [session, everyone] = await Promise.all([api.session(), api.map()]);
    this.session = session;
    this.columns = everyone.arrays;
    this.digits = this.columns.codes.shape[1];
    this.rows = null;
    this.kind = everyone.facts.projection.kind;
    this.fields = new Fields(session, this.columns);
    $("search").value = this.state.search;
    this.filter.setText(this.state.search);
    const wanted = { color: this.state.color, hidden: this.state.hidden };
    if (!this.fields.all[this.state.color]) this.state.color = "labels";
    for (const [field, value] of this.state.hidden) this.fields.off[field]?.add(value);
    $("summary").textContent = [session.title, `${session.patients.toLocaleString()} patients`].filter(Boolean).join(" · ");
    $("open-upload").hidden = !session.uploads;
    this.tabs = new Tabs(this, session.tabs);
    this.map.describe = (row) => [this.nameOf(row), this.labelsOf(row).join(", ") || "no label", this.factsAt(row)];
    this.map.setPlaces(this.columns.positions);
    this.list.offer();
    this.recolor();
    this.second.offer(session.encoders);
    await this.map.drawn();
    document.documentElement.dataset.ready = "map";
    [this.histogram, this.names] = await Promise.all([api.distances(), session.show_ids ? api.names() : null]);
    if (this.names && this.filter.clauses.some((one) => one.field === "patient")) this.recolor();
    await this.show({ reveal: Boolean(this.state.patient || this.state.upload || this.state.lasso || this.state.cohort) });
    document.documentElement.dataset.ready = "all";
    this.#follow(everyone.facts.projection);
    this.#columns(wanted);
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
    Object.assign(this.state, { patient: code, upload: null, other: null, number: 0, lasso: null, tab: null });
    this.show({ push: true, focus, reveal });
  }

  showUpload(code) {
    Object.assign(this.state, { patient: null, upload: code, other: null, number: 0, lasso: null, tab: null, cohort: null });
    this.show({ push: true });
  }

  compare(code) {
    if (code) this.opener = this.picking.stop() ?? document.activeElement;
    this.state.other = code;
    this.show({ push: true });
  }

  group(polygon, on = this.kind) {
    Object.assign(this.state, { patient: null, upload: null, other: null, lasso: polygon, on, cohort: null });
    this.show({ push: true });
  }

  clear() {
    if (this.detail.box.contains(document.activeElement)) $("map").focus();
    Object.assign(this.state, { patient: null, upload: null, other: null, number: 0, lasso: null, tab: null, cohort: null });
    this.show({ push: true });
  }

  setRecording(number) {
    this.state.number = number;
    this.show();
  }

  // Layout, gain, speed or overlay of the ECG paper.
  setPaper(change) {
    Object.assign(this.state, change);
    this.writeAddress();
  }

  enter(tab) {
    this.state.tab = tab;
    this.show({ push: true });
  }

  async show({ push = false, focus = false, reveal = false } = {}) {
    const { state } = this, compared = !$("compare").hidden;
    address.write(state, this.fields.off, push);
    const comparing = Boolean(state.other && (state.patient || state.upload));
    const tab = this.tabs.show(state.tab);
    $("compare").hidden = tab || !comparing;
    $("explore").hidden = tab || comparing;
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
    if (focus) this.detail.box.querySelector(".neighbors .open")?.focus();
  }

  async #detail() {
    const { state } = this;
    const clean = { selected: -1, near: [], visitor: null, polygon: null };
    this.near = [];
    this.map.peer?.show({ polygon: null });
    const grayed = this.lassoed?.only;
    this.lassoed = null; // {rows, only}
    if (grayed) this.recolor();
    if (state.lasso) {
      await this.#showGroup(clean);
    } else if (state.upload) {
      this.map.mark(clean);
      const found = await this.detail.showUpload(state.upload);
      if (found) this.#mark({ ...clean, visitor: found.position }, found.neighbors);
    } else if (state.patient) {
      const row = this.rowOf(state.patient);
      if (row < 0) {
        this.map.mark(clean);
        this.detail.showProblem(new Error(`There is no patient ${state.patient} on this map. The link may be of another explorer: pseudonyms differ between machines and users`));
        return;
      }
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
      if (state.broken) this.detail.showProblem(new Error(state.broken));
      state.broken = null;
    }
  }

  #mark(marks, near) {
    this.near = near;
    this.map.mark({ ...marks, near: near.map((n) => n.row) });
  }

  // A lasso finds the same patients on whichever projection the map shows; on another than its own they
  // alone have colors.
  async #showGroup(clean) {
    const { lasso, on } = this.state, own = !on || on === this.kind;
    this.map.mark({ ...clean, polygon: own ? lasso : null });
    this.map.peer?.show({ polygon: on === this.second.key ? lasso : null });
    try {
      const places = own ? undefined : (await (/^e/.test(on) ? api.positionsBy(on.slice(1)) : api.positions(on))).arrays.positions;
      if (lasso !== this.state.lasso) return;
      const rows = this.map.scatter.inside(lasso, places), only = own ? null : new Uint8Array(this.session.patients);
      if (only) for (const row of rows) only[row] = 1;
      this.lassoed = { rows, only };
      this.recolor();
    } catch (error) {
      this.detail.showProblem(error);
    }
  }

  // The patients inside the lasso who are not filtered out.
  lassoRows() { return this.lassoed.rows.filter((row) => !this.filter.failed[row]); }

  // The map's colors and everything else that depends on who is filtered out

  // The rows of those who are not, in this order.
  shownRows(order) {
    const { failed } = this.filter, rows = [];
    for (let k = 0; k < failed.length; k++) {
      const i = order ? order[k] : k;
      if (!failed[i]) rows.push(i);
    }
    return rows;
  }

  colorBy(name) {
    this.state.color = name;
    this.recolor();
  }

  writeAddress() { address.write(this.state, this.fields.off, false); }

  recolor() {
    const { state, filter, fields } = this;
    filter.apply();
    this.shown = filter.shown;
    this.look = fields.look(state.color, filter.failed, filter.wanted, this.lassoed?.only);
    this.map.setLook(this.look);
    if (this.map.peer?.scatter.count) this.map.peer.setLook(this.look);
    this.map.setOverlay(overlay(this));
    this.legend.update();
    this.histograms.update();
    this.search.update();
    this.list.update();
    this.writeAddress();
    if (state.lasso && this.lassoed) this.detail.showGroup(this.lassoRows());
  }

  // Further columns: measured and of the stores at once, and predictions when they are made. `wanted` is what the
  // address asked for.
  async #columns(wanted) {
    for (;;) {
      const made = await api.columns().catch(() => null);
      if (!made) return;
      const before = new Set(Object.keys(this.fields.all)), isNew = (name) => this.fields.all[name] && !before.has(name);
      this.fields.add(made);
      if (isNew(wanted.color)) this.state.color = wanted.color;
      for (const [field, value] of wanted.hidden) if (isNew(field)) this.fields.off[field].add(value);
      document.documentElement.dataset.columns = made.facts.state;
      this.predicting = made.facts.state === "working" ? `Predictions: ${Math.round(100 * made.facts.progress)} %` : "";
      this.histograms.bars = null; // with those of new columns
      this.list.offer();
      this.filter.setText(this.state.search);
      this.recolor();
      if (made.facts.state !== "working") return;
      await new Promise((done) => { setTimeout(done, 2000); });
    }
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
    this.recolor();
    if (this.state.upload || this.state.lasso) { this.shownKey = null; this.show(); }
  }

  #listen() {
    const { map } = this;
    map.addEventListener("choose", (event) => {
      if (event.detail >= 0) this.choose(this.codeOf(event.detail), { reveal: true });
    });
    map.addEventListener("group", (event) => { map.setLasso(false); this.group(event.detail); });
    map.addEventListener("mode", (event) => $("lasso").setAttribute("aria-pressed", String(event.detail)));
    const both = (act) => () => [map, map.peer].filter(Boolean).forEach(act);
    map.addEventListener("mode", (event) => map.peer?.lasso(event.detail));
    $("lasso").addEventListener("click", () => map.setLasso(!map.lassoing));
    $("map-in").addEventListener("click", both((one) => one.zoom(1.5)));
    $("map-out").addEventListener("click", both((one) => one.zoom(1 / 1.5)));
    $("map-fit").addEventListener("click", both((one) => one.fit()));
    $("map-png").addEventListener("click", async () => save("map.png", await map.picture(...caption(this))));
    $("show-names").addEventListener("click", () => {
      this.state.naming = $("show-names").getAttribute("aria-pressed") !== "true";
      this.recolor();
    });
    $("show-contours").addEventListener("click", () => {
      this.state.contours = !this.state.contours;
      this.recolor();
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
      if (!this.fields.all[this.state.color]) this.state.color = "labels";
      for (const set of Object.values(this.fields.off)) set.clear();
      for (const [field, value] of this.state.hidden) this.fields.off[field]?.add(value);
      $("histograms-box").open = this.state.bars;
      this.search.set(this.state.search);
      this.show();
    });
    document.addEventListener("keydown", (event) => press(this, event));
    upload.listen(this);
  }

  toggleTheme() {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem(THEME, theme);
    setTheme(theme);
    if (!this.fields) return;
    this.recolor();
    this.detail.view?.draw();
    this.comparison.view?.draw();
    this.shownKey = null;
    this.show();
  }
}

function setTheme(theme) { document.documentElement.dataset.theme = theme; }

const app = new App();
globalThis.clocs = app; // for tests and debugging
app.start().catch((error) => {
  $("detail").replaceChildren(make("p", { class: "error", role: "alert" }, sentence(error.message)));
  $("summary").textContent = "";
});
