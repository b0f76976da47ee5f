// Two ECGs, side by side or on one paper: same leads per row, same scale, scrolling together.

import * as api from "./api.js";
import { $, color, factsOf, make, save, segments, sentence } from "./dom.js";
import { closeness, distanceKey, distancePlot } from "./distances.js";
import { View, Viewer } from "./ecg.js";
import { EcgTools } from "./ecg_tools.js";
import { layoutsOf } from "./paper.js";
import { rateOf } from "./patient.js";

export class Compare {
  constructor(app) {
    this.app = app;
    this.box = $("compare");
  }

  // left, right: {patient, number} or {upload}; near: the neighbor search's result, or undefined.
  async show(left, right, near) {
    this.stop?.abort();
    this.stop = new AbortController();
    const stop = this.stop.signal;
    this.box.replaceChildren(make("p", { class: "quiet" }, "Loading the two ECGs …"));
    try {
      const [a, b, found] = await Promise.all([this.#load(left, stop), this.#load(right, stop),
        near ?? (left.patient ? api.apart(left.patient, right.patient, { signal: stop }) : null)]);
      if (stop.aborted) return;
      this.#draw([a, b], found);
      this.box.focus({ preventScroll: true });
    } catch (error) {
      if (stop.aborted) return;
      this.box.replaceChildren(make("div", { class: "tools" }, this.#back()), make("p", { class: "error" }, sentence(error.message)));
    }
  }

  #back() { return make("button", { type: "button", id: "close-compare", title: "Back (Esc)", onclick: () => this.app.compare(null) }, "← Back to map"); }

  // Both ECGs: on two papers, or on one.
  #draw(both, near) {
    const { state } = this.app, overlay = state.overlay;
    const layouts = layoutsOf(both.map((one) => one.signal), both.map((one) => one.beat));
    const view = new View({ layout: layouts.includes(state.layout) ? state.layout : layouts[0], gain: state.gain, speed: state.speed });
    const papers = overlay ? [[both[0], aligned(...both)]] : both.map((one) => [one]);
    const canvases = papers.map(() => make("canvas", { class: "side" }));
    const heads = both.map((one, i) => this.#who(one, overlay ? ["first", "second"][i] : null));
    const boxes = canvases.map((canvas) => make("div", { class: "ecg" }, canvas));
    const panels = overlay ? [make("section", { class: "panel", "aria-label": "Both ECGs" }, make("div", { class: "whos" }, ...heads), ...boxes)]
      : both.map((one, i) => make("section", { class: "panel", "aria-label": `ECG of ${one.name}` }, heads[i], boxes[i]));
    const pair = make("div", { class: overlay ? "pair one" : "pair" }, ...panels);
    this.box.replaceChildren(pair); // viewers ask for the width of their boxes
    const viewers = papers.map(([one, over], i) => new Viewer(canvases[i], { ...one, over }, view));
    viewers.forEach((viewer, i) => viewer.mark(both[i].measured.waves));
    const tools = new EcgTools(view, { layouts, remember: (change) => this.app.setPaper(change), picture: () => this.#save(viewers, both, overlay) });
    const scale = make("p", { class: "scale" });
    const sides = make("div", { class: "segments", role: "radiogroup", "aria-label": "Papers" });
    segments(sides, [["pair", "Side by side"], ["overlay", "Overlay"]], overlay ? "overlay" : "pair", (value) => {
      this.app.setPaper({ overlay: value === "overlay" });
      this.#draw(both, near);
      this.box.querySelector("[aria-label=Papers] [aria-checked=true]").focus();
    });
    pair.before(make("div", { class: "tools" }, this.#back(), near && make("span", {}, distanceText(near)), make("span", { class: "spring" }), sides, tools.kinds),
      tools.paper, tools.measured, scale);
    if (near) this.box.append(this.#between(near));
    view.addEventListener("change", () => {
      const shift = overlay && view.layout !== "beat" ? ["first beats aligned"] : [];
      scale.replaceChildren(...[...view.description(), ...shift].map((text) => make("span", {}, text)));
    });
    view.set({});
    this.view = view;
  }

  close() {
    this.stop?.abort();
    this.box.replaceChildren();
  }

  async #load(one, stop) {
    const facts = one.upload ? await api.uploaded(one.upload, { signal: stop }) : await api.patient(one.patient, { signal: stop });
    if (!one.upload && !facts.recordings.length) throw new Error(`The recordings of ${facts.name} are not loaded. Start the explorer with --store to see them.`);
    const [signal, beats, measured] = await Promise.all([api.signal(one, { seconds: 60, abort: stop }), api.beats(one, { signal: stop }), api.measurements(one, { signal: stop })]);
    return { ...facts, own: one.upload, signal, ...beats, measured };
  }

  #who(one, paint) {
    const rate = rateOf(one.measured);
    return make("div", { class: "who" }, paint && make("i", { class: `line ${paint}` }), make("h2", {}, one.name), ...(one.labels ?? []).map((label) => this.app.detail.chip(label)),
      make("span", { class: "end" }, !one.own && make("button", { type: "button", "aria-label": `Open ${one.name}`, onclick: () => this.app.choose(one.code) }, "Open")),
      make("p", { class: "quiet" }, [one.own ? "Your own ECG" : factsOf(one), rate].filter(Boolean).join(" · ")));
  }

  #between(near) {
    const { histogram } = this.app;
    return make("section", { class: "panel between" }, make("div", {}, distancePlot(histogram, [{ distance: near.distance, on: true }])),
      make("div", {}, make("h2", {}, `Distance ${near.distance.toFixed(3)}`),
        make("p", { class: "quiet" }, [closeness(near.closer_pairs) && `${closeness(near.closer_pairs)} of pairs of different patients`, `cosine distance ${near.cosine.toFixed(3)}`].filter(Boolean).map(sentence).join(" ")),
        distanceKey(histogram)));
  }

  async #save(viewers, both, overlay) {
    const names = overlay ? [both.map((one) => one.name).join(" and ")] : both.map((one) => one.name);
    const pictures = await Promise.all(viewers.map(async (viewer, i) => createImageBitmap(await viewer.picture(names[i]))));
    const canvas = document.createElement("canvas"), gap = 20;
    canvas.width = pictures.reduce((sum, one) => sum + one.width + gap, -gap);
    canvas.height = Math.max(...pictures.map((one) => one.height));
    const pen = canvas.getContext("2d");
    pen.fillStyle = color("panel");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    let x = 0;
    for (const one of pictures) { pen.drawImage(one, x, canvas.height - one.height); x += one.width + gap; } // papers in line, whatever their titles take
    canvas.toBlob((blob) => save("compare.png", blob), "image/png");
  }
}

const distanceText = (near) => [`Distance ${near.distance.toFixed(3)}`, closeness(near.closer_pairs) && `${closeness(near.closer_pairs)} of pairs`].filter(Boolean).join(", ");

// The second ECG moved in time, so that the first beats of both are at the same place.
function aligned(one, other) {
  if (!one.peaks.length || !other.peaks.length) return other;
  return { ...other, signal: { ...other.signal, start: other.signal.start + one.peaks[0] - other.peaks[0] } };
}
