// Two ECGs side by side: same leads per row, same scale, scrolling together.

import * as api from "./api.js";
import { $, factsOf, make, save, segments, sentence } from "./dom.js";
import { closeness, distanceKey, distancePlot } from "./distances.js";
import { View, Viewer } from "./ecg.js";
import { hasClinical } from "./paper.js";

export class Compare {
  constructor(app) {
    this.app = app;
    this.box = $("compare");
  }

  // left, right: {patient, number} or {upload}; near: the neighbour search's result, or undefined.
  async show(left, right, near, layout) {
    this.stop?.abort();
    this.stop = new AbortController();
    const stop = this.stop.signal;
    this.box.replaceChildren(make("p", { class: "quiet" }, "Loading the two ECGs …"));
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
          make("button", { type: "button", id: "close-compare", title: "Back (Esc)", onclick: () => this.app.compare(null) }, "← Back to map"),
          near && make("span", {}, [`Distance ${near.distance.toFixed(3)}`, closeness(near.closer_pairs) && `${closeness(near.closer_pairs)} of pairs`].filter(Boolean).join(", ")),
          make("span", { class: "spring" }), scale, kinds,
          make("button", { type: "button", class: "icon", "aria-label": "Zoom out", onclick: () => view.zoom(0.8) }, "−"),
          make("button", { type: "button", class: "icon", "aria-label": "Zoom in", onclick: () => view.zoom(1.25) }, "+"),
          make("button", { type: "button", onclick: () => view.set({ scale: "fit", start: 0 }) }, "Fit"),
          make("button", { type: "button", onclick: () => this.#save(sides, [a, b]) }, "PNG")),
        make("div", { class: "pair" }, ...sides.map((side) => side.panel)),
        near ? this.#between(near) : "");
      sides.forEach((side, i) => { side.viewer = new Viewer(side.canvas, [a, b][i].signal, view); });
      const draw = () => {
        scale.textContent = view.description().join(", ");
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
      this.box.replaceChildren(make("div", { class: "tools" }, make("button", { type: "button", onclick: () => this.app.compare(null) }, "← Back to map")),
        make("p", { class: "error" }, sentence(error.message)));
    }
  }

  close() {
    this.stop?.abort();
    this.box.replaceChildren();
  }

  async #load(one, stop) {
    const facts = one.upload ? await api.uploaded(one.upload, { signal: stop }) : await api.patient(one.patient, { signal: stop });
    if (!one.upload && !facts.recordings.length) throw new Error(`The recordings of ${facts.name} are not loaded. Start the explorer with --store to see them.`);
    return { ...facts, own: one.upload, signal: await api.signal(one, { seconds: 60, abort: stop }) };
  }

  #side(one, letter) {
    const canvas = make("canvas", { class: "side" });
    const panel = make("section", { class: "panel", "aria-label": letter },
      make("div", { class: "who" }, make("h2", {}, one.name), ...(one.labels ?? []).map((label) => this.app.detail.chip(label)),
        make("span", { class: "end" }, !one.own && make("button", { type: "button", onclick: () => this.app.choose(one.code) }, "Open")),
        make("p", { class: "quiet" }, one.own ? "Your own ECG" : factsOf(one))),
      make("div", { class: "ecg" }, canvas));
    return { panel, canvas };
  }

  #between(near) {
    const { histogram } = this.app;
    return make("section", { class: "panel between" }, make("div", {}, distancePlot(histogram, [{ distance: near.distance, on: true }])),
      make("div", {}, make("h2", {}, `Distance ${near.distance.toFixed(3)}`),
        make("p", { class: "quiet" }, [closeness(near.closer_pairs) && `${closeness(near.closer_pairs)} of pairs of different patients`, `cosine distance ${near.cosine.toFixed(3)}`].filter(Boolean).map(sentence).join(" ")),
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
