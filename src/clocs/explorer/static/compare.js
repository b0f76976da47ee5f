// Two ECGs side by side: the same leads in the same rows, the same scale, moving together.

import * as api from "./api.js";
import { $, factsOf, make, save, segments } from "./dom.js";
import { closeness, distanceKey, distancePlot } from "./distances.js";
import { View, Viewer } from "./ecg.js";
import { hasClinical } from "./paper.js";

export class Compare {
  constructor(app) {
    this.app = app;
    this.box = $("compare");
  }

  // left, right: {patient, number} or {upload}; near: what the neighbour search said, or undefined.
  async show(left, right, near, layout) {
    this.stop?.abort();
    this.stop = new AbortController();
    const stop = this.stop.signal;
    this.box.replaceChildren(make("p", { class: "quiet" }, "Reading the two ECGs …"));
    try {
      const [a, b] = await Promise.all([left, right].map((one) => this.#load(one, stop)));
      if (stop.aborted) return;
      const shared = hasClinical(a.signal) && hasClinical(b.signal);
      const view = new View({ layout: shared ? layout : "stacked" });
      const kinds = make("div", { class: "segments", role: "radiogroup", "aria-label": "Layout" });
      const scale = make("span", { class: "quiet" });
      const sides = [a, b].map((one, i) => this.#side(one, i ? "B" : "A"));
      this.box.replaceChildren(
        make("div", { class: "tools" },
          make("button", { type: "button", id: "close-compare", title: "Back (Esc)", onclick: () => this.app.compare(null) }, "← Back to the map"),
          near && make("span", {}, `Distance ${near.distance.toFixed(3)}, ${closeness(near.closer_pairs)} of pairs`),
          make("span", { class: "spring" }), scale, kinds,
          make("button", { type: "button", class: "icon", "aria-label": "Smaller", onclick: () => view.zoom(0.8) }, "−"),
          make("button", { type: "button", class: "icon", "aria-label": "Larger", onclick: () => view.zoom(1.25) }, "+"),
          make("button", { type: "button", onclick: () => view.set({ scale: "fit", start: 0 }) }, "Fit"),
          make("button", { type: "button", onclick: () => this.#save(sides, [a, b]) }, "PNG")),
        make("div", { class: "pair" }, ...sides.map((side) => side.panel)),
        near ? this.#between(near) : "");
      sides.forEach((side, i) => { side.viewer = new Viewer(side.canvas, [a, b][i].signal, view); });
      const draw = () => {
        scale.textContent = view.words().join(", ");
        segments(kinds, shared ? [["stacked", "Stacked"], ["clinical", "3 × 4"]] : [["stacked", "Stacked"]], view.layout, (value) => {
          view.set({ layout: value });
          this.app.setLayout(value);
        });
      };
      view.addEventListener("change", draw);
      view.set({});
      this.view = view;
      this.box.focus({ preventScroll: true });
    } catch (error) {
      if (stop.aborted) return;
      this.box.replaceChildren(make("div", { class: "tools" }, make("button", { type: "button", onclick: () => this.app.compare(null) }, "← Back to the map")),
        make("p", { class: "error" }, error.message));
    }
  }

  close() {
    this.stop?.abort();
    this.box.replaceChildren();
  }

  async #load(one, stop) {
    const facts = one.upload ? await api.uploaded(one.upload, { signal: stop }) : await api.patient(one.patient, { signal: stop });
    if (!one.upload && !facts.recordings.length) throw new Error(`The recordings of ${facts.name} are not loaded; start with --store to see them.`);
    return { ...facts, own: one.upload, signal: await api.signal(one, { seconds: 60, abort: stop }) };
  }

  #side(one, letter) {
    const canvas = make("canvas", { class: "side" });
    const panel = make("section", { class: "panel", "aria-label": letter },
      make("div", { class: "who" }, make("h2", {}, one.name), ...(one.labels ?? []).map((label) => this.app.detail.chip(label)),
        make("span", { class: "end" }, !one.own && make("button", { type: "button", onclick: () => this.app.choose(one.code) }, "Go to")),
        make("p", { class: "quiet" }, one.own ? "your own ECG" : factsOf(one))),
      make("div", { class: "ecg" }, canvas));
    return { panel, canvas };
  }

  #between(near) {
    const { histogram } = this.app;
    return make("section", { class: "panel between" }, make("div", {}, distancePlot(histogram, [{ distance: near.distance, on: true }])),
      make("div", {}, make("h2", {}, `Distance ${near.distance.toFixed(3)}`),
        make("p", { class: "quiet" }, [closeness(near.closer_pairs) && `${closeness(near.closer_pairs)} of the pairs of different patients`, `cosine distance ${near.cosine.toFixed(3)}`].filter(Boolean).join("; ")),
        distanceKey(histogram)));
  }

  async #save(sides, ones) {
    const pictures = await Promise.all(sides.map(async (side, i) => createImageBitmap(await side.viewer.picture(ones[i].name))));
    const canvas = document.createElement("canvas");
    canvas.width = pictures[0].width + pictures[1].width + 20;
    canvas.height = Math.max(...pictures.map((p) => p.height));
    const pen = canvas.getContext("2d");
    pen.drawImage(pictures[0], 0, 0);
    pen.drawImage(pictures[1], pictures[0].width + 20, 0);
    canvas.toBlob((blob) => save("compare.png", blob), "image/png");
  }
}
