// The panel on the right: a patient, an uploaded ECG, a group, or the introduction.

import * as api from "./api.js";
import { $, factsOf, make, save, sentence, signed, toast } from "./dom.js";
import { closeness, distanceKey, distancePlot } from "./distances.js";
import { View, Viewer } from "./ecg.js";
import { EcgTools } from "./ecg_tools.js";
import { meaning, symbol } from "./fields.js";
import { SavedPredictions } from "./predictions.js";
import { drawThumbnail, layoutFrom, layoutsOf } from "./paper.js";
import { comparePicker } from "./pick.js";

// "72 bpm" of measurements.
export const rateOf = ({ values }) => values.filter((one) => one.title === "Heart rate" && one.value !== null).map((one) => `${Math.round(one.value)} bpm`).join("");

const THUMBNAIL_LEADS = ["II", "ECG", "I", "V2"];

export class Detail {
  constructor(app) {
    this.app = app;
    this.box = $("detail");
  }

  begin() {
    this.stop?.abort();
    this.stop = new AbortController();
    this.view = null;
    return this.stop.signal;
  }

  // On a small screen the panel is below the map: go there.
  reveal() {
    if (this.box.getBoundingClientRect().top < 0.5 * window.innerHeight) return;
    const linked = document.documentElement.dataset.ready !== "all"; // nobody has clicked
    if (!linked) this.box.focus({ preventScroll: true });
    this.box.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches || linked ? "auto" : "smooth" });
  }

  chip(label) {
    const value = this.app.fields.all.labels.values.find((one) => one.value === label);
    return make("span", { class: "chip", title: value && meaning(value) }, value && symbol(value.shape, this.app.fields.paint(value)), label);
  }

  showIntro() {
    this.begin();
    const { session, histogram } = this.app;
    this.box.replaceChildren(
      make("div", { class: "intro" },
        make("h2", {}, "Explore patients by their ECGs"),
        make("p", {}, "Each point is a patient. Patients with similar ECGs are close together, according to an encoder trained without labels."),
        make("p", { class: "quiet" }, "Click a point to see the ECG and the ten nearest patients. Use the lasso to summarize a group. Search for a diagnosis, an age or a sex; click a legend entry to filter it out, double-click for that one alone."),
        session.uploads && make("p", {}, make("button", { type: "button", onclick: () => $("open-upload").click() }, "Upload your own ECG"))),
      this.#distances(histogram, []),
      ...session.notes.map((note) => make("p", { class: "notice" }, note)),
      session.not_embedded ? make("p", { class: "fine" }, `${session.not_embedded.toLocaleString()} ${session.not_embedded === 1 ? "patient has" : "patients have"} no embedding and ${session.not_embedded === 1 ? "is" : "are"} not on the map.`) : "",
    );
  }

  async showPatient(code, number) {
    const stop = this.begin();
    try {
      const [patient, near] = await Promise.all([api.patient(code, { signal: stop }), api.neighbors(code, { signal: stop })]);
      if (stop.aborted) return null;
      number = Math.min(number, Math.max(0, patient.recordings.length - 1));
      const ecg = make("div", {});
      this.box.replaceChildren(
        this.#who(patient.name, patient.labels, factsOf(patient)),
        ecg,
        ...this.#neighbors(near.neighbors, { code }),
      );
      if (patient.recordings.length) this.#ecg(ecg, patient, number, stop);
      else ecg.append(make("p", { class: "quiet" }, "This patient's recordings are not loaded. Start the explorer with --store to see them."));
      return { patient, near: near.neighbors };
    } catch (error) {
      this.#failed(error, stop);
      return null;
    }
  }

  async showUpload(code) {
    const stop = this.begin();
    try {
      const upload = await api.uploaded(code, { signal: stop });
      if (stop.aborted) return null;
      const ecg = make("div", {});
      this.box.replaceChildren(
        this.#who(upload.name, [], "Your own ECG, kept in memory until the explorer stops"),
        ...upload.notes.map((note) => make("p", { class: "notice" }, note)),
        ecg,
        ...(upload.neighbors.length ? this.#neighbors(upload.neighbors, { upload: code }) : []),
      );
      const recording = { ...upload.recording, number: 0, name: upload.name, labels: [], episodes: [] };
      this.#ecg(ecg, { name: upload.name, labels: [], recordings: [recording], upload: code }, 0, stop);
      return upload;
    } catch (error) {
      this.#failed(error, stop);
      return null;
    }
  }

  showGroup(rows) {
    this.begin();
    this.app.groups.showLasso(rows);
  }

  #who(name, labels, facts) {
    const picker = comparePicker(this.app);
    return make("div", { class: "who" }, make("h2", {}, name), ...labels.map((label) => this.chip(label)), this.#close(picker.button), make("p", { class: "quiet" }, facts), picker.form);
  }

  #close(...before) {
    return make("span", { class: "end" }, ...before, make("button", { type: "button", class: "icon", "aria-label": "Close", title: "Close (Esc)", onclick: () => this.app.clear() }, "×"));
  }

  async #ecg(box, patient, number, stop) {
    const recording = patient.recordings[number];
    const source = patient.upload ? { upload: patient.upload } : { patient: patient.code, number };
    const canvas = make("canvas", { id: "ecg" });
    const scale = make("p", { class: "scale" }), rate = make("span", { class: "rate" });
    const own = new Set(recording.labels.length ? recording.labels : recording.episodes);
    const differ = patient.recordings.length > 1 && own.size;
    const choose = patient.recordings.length > 1 && make("select", { "aria-label": "Recording", onchange: (event) => this.app.setRecording(Number(event.target.value)) },
      ...patient.recordings.map((one) => make("option", { value: one.number, selected: one.number === number },
        `${one.name}: ${one.seconds.toFixed(0)} s${one.labels.length ? `, ${one.labels.join(", ")}` : ""}`)));
    const head = make("div", { class: "section-head" }, make("h3", {}, "ECG"), rate, choose, make("span", { class: "spring" }));
    const saved = this.app.session.models.length ? new SavedPredictions(source, (label) => this.chip(label), stop) : null;
    if (saved) head.append(saved.button);
    const paper = make("div", { class: "ecg" }, canvas);
    const measured = make("section", { id: "measurements" });
    box.replaceChildren(head, paper, scale, measured, ...(saved ? [saved.box] : []));
    let signal, beats;
    try {
      [signal, beats] = await Promise.all([api.signal(source, { seconds: 600, abort: stop }), api.beats(source, { signal: stop })]);
    } catch (error) {
      if (!stop.aborted) box.replaceChildren(head, make("p", { class: "error" }, sentence(error.message)));
      return;
    }
    if (stop.aborted) return;
    const layouts = layoutsOf([signal], [beats.beat]), { layout, gain, speed } = this.app.state;
    const view = new View({ layout: layoutFrom(layouts, layout), gain, speed });
    const viewer = new Viewer(canvas, { signal, beat: beats.beat }, view);
    const tools = new EcgTools(view, {
      layouts, remember: (change) => this.app.setPaper(change),
      picture: async () => save(`ecg-${patient.code ?? patient.name}.png`, await viewer.picture(patient.name)),
    });
    head.append(tools.kinds);
    paper.before(tools.paper, tools.measured);
    view.addEventListener("change", () => {
      const published = recording.rhythm && `published as ${recording.rhythm.toLowerCase()}`, cut = signal.samples / signal.rate < signal.seconds - 0.01 ? [`first ${(signal.samples / signal.rate).toFixed(0)} s`] : [];
      scale.replaceChildren(...[...view.description(), ...cut, published, differ ? `labels: ${[...own].join(", ")}` : null].filter(Boolean).map((text) => make("span", {}, text)));
    });
    view.set({});
    this.view = view;
    this.#measure(source, viewer, { rate, measured }, stop);
    saved?.show(viewer, recording.labels.length ? recording.labels : patient.labels);
  }

  // Marks on the paper, and a table of what follows from them.
  async #measure(source, viewer, { rate, measured }, stop) {
    measured.replaceChildren(make("p", { class: "quiet" }, "Measuring …"));
    const found = await api.measurements(source, { signal: stop }).catch((error) => ({ problem: error.message, values: [], waves: {} }));
    if (stop.aborted) return;
    rate.textContent = rateOf(found);
    if (!found.problem) viewer.mark(found.waves);
    const number = (value, step) => signed(value, step < 1 ? 1 : 0);
    measured.replaceChildren(
      make("div", { class: "section-head" }, make("h3", {}, "Measured")),
      found.problem ? make("p", { class: "notice" }, `Nothing is measured: ${sentence(found.problem)}`) : "",
      make("dl", { class: "measures" }, ...found.values.map(({ title, unit, step, value, low, high, reason }) => make("div", {}, make("dt", {}, title),
        make("dd", {}, value === null ? "–" : `${number(value, step)} ${unit}`, make("small", {}, reason ?? (typeof low === "number" ? `${number(low, step)} to ${number(high, step)}` : "")))))),
      make("p", { class: "fine" }, `Medians of ${found.beats?.length ?? 0} beats${found.seconds < viewer.signal.seconds - 0.5 ? ` of the first ${Math.round(found.seconds)} s` : ""} and their 95 % intervals, which say how much beats differ. For research; no medical device.`));
  }

  #neighbors(near, from) {
    const { histogram } = this.app;
    const plot = make("div", {});
    const draw = (on) => plot.replaceChildren(this.#distances(histogram, near.map((n, i) => ({ distance: n.distance, on: i === on })), 660));
    draw(-1);
    const canvases = [];
    const list = make("ol", { class: "neighbors", id: "neighbors" }, ...near.map((n, i) => {
      const canvas = make("canvas", { "aria-hidden": "true" });
      canvases.push(canvas);
      const open = make("button", {
        type: "button", class: "open", "data-code": n.code, title: "Compare the two ECGs (Enter)",
        onclick: () => this.app.compare(n.code), onmouseenter: () => draw(i), onmouseleave: () => draw(-1), onfocus: () => draw(i), onblur: () => draw(-1),
      },
      make("span", { class: "rank" }, String(i + 1)), canvas,
      make("span", {}, make("span", { class: "name" }, `${n.name} `), make("span", { class: "facts" }, [n.labels.join(", "), factsOf(n, { dataset: this.app.session.datasets.length > 1 })].filter(Boolean).join(" · "))),
      make("span", { class: "apart" }, n.distance.toFixed(3), make("small", {}, closeness(n.closer_pairs))));
      return make("li", {}, open, make("button", { type: "button", class: "go", "aria-label": `Open ${n.name}`, title: "Open this patient (g)", onclick: () => this.app.choose(n.code) }, "Open"));
    }));
    list.addEventListener("keydown", (event) => {
      const rows = [...list.querySelectorAll(".open")], at = rows.indexOf(event.target.closest("li")?.querySelector(".open"));
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))]?.focus();
      } else if (event.key === "g" && at >= 0) {
        event.preventDefault();
        event.stopPropagation();
        this.app.choose(near[at].code, { focus: true });
      }
    });
    if (this.app.session.signals) this.#thumbnails(near, canvases, this.stop.signal);
    return [plot, make("section", {},
      make("div", { class: "section-head" }, make("h3", {}, "Nearest patients"), make("span", { class: "spring" }),
        from.code && make("a", { href: api.csvOf(from.code), download: `neighbors-${from.code}.csv` }, "Save as CSV")),
      list,
      make("p", { class: "fine" }, "Euclidean distance between unit vectors: 0 means the same direction, 1.41 orthogonal. The percentage is the share of pairs of different patients that are further apart. Click a row to compare the ECGs."))];
  }

  async #thumbnails(near, canvases, stop) {
    for (const [i, n] of near.entries()) {
      try {
        const lead = await this.#leadOf(n, stop);
        if (!lead) continue;
        const signal = await api.signal({ patient: n.code, number: 0 }, { lead, seconds: 10, abort: stop });
        if (stop.aborted) return;
        drawThumbnail(canvases[i], signal, lead);
        canvases[i].dataset.drawn = "yes";
      } catch (error) {
        if (stop.aborted || error.name === "AbortError") return;
      }
    }
  }

  async #leadOf(n, stop) {
    this.leads ??= new Map();
    if (!this.leads.has(n.dataset)) {
      const { recordings } = await api.patient(n.code, { signal: stop });
      const leads = recordings[0]?.leads ?? [];
      this.leads.set(n.dataset, THUMBNAIL_LEADS.find((lead) => leads.includes(lead)) ?? leads[0]);
    }
    return this.leads.get(n.dataset);
  }

  #distances(histogram, marks, width = 660) {
    return make("section", { class: "distances" }, make("div", { class: "section-head" }, make("h3", {}, marks.length ? "Distances in context" : "Distances between patients")),
      distancePlot(histogram, marks, width), distanceKey(histogram),
      histogram.description && make("p", { class: "fine" }, `Euclidean distances ${histogram.description}.`));
  }

  #failed(error, stop) {
    if (!stop.aborted && error.name !== "AbortError") this.showProblem(error);
  }

  showProblem(error) {
    this.box.replaceChildren(make("div", { class: "intro" }, make("p", { class: "error", role: "alert" }, sentence(error.message)),
      make("p", {}, make("button", { type: "button", onclick: () => this.app.clear() }, "Show all patients"))));
    toast(sentence(error.message));
  }
}
