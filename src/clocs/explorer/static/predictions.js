// What saved classifiers predict for a recording, and which part of it speaks for a label.

import * as api from "./api.js";
import { make, sentence, toast } from "./dom.js";

export class SavedPredictions {
  // source: {patient, number} or {upload}; chip: makes a label's sign; stop: an AbortSignal.
  constructor(source, chip, stop) {
    Object.assign(this, { source, chip, stop, known: new Map(), explained: null });
    this.box = make("section", { id: "predictions" });
    this.button = make("button", {
      type: "button", id: "explain", "aria-pressed": "false", disabled: true,
      title: "Color the parts of the ECG that speak for the predicted label", onclick: () => this.#toggle(this.first),
    }, "Explain");
    this.caption = make("p", { class: "fine", id: "explanation", role: "status" });
  }

  async show(viewer, labels) {
    this.viewer = viewer;
    this.box.replaceChildren(make("p", { class: "quiet" }, "Predicting …"));
    try {
      const made = await api.predictions(this.source, { signal: this.stop });
      if (this.stop.aborted) return;
      this.rows = [];
      this.box.replaceChildren(this.caption, ...made.map((one) => this.#classifier(one, labels)));
      const usable = made.find((one) => one.classes.length);
      this.first = usable && { model: usable.model, label: (usable.classes.find((c) => c.predicted) ?? usable.classes[0]).label };
      this.button.disabled = !usable;
    } catch (error) {
      if (!this.stop.aborted) this.box.replaceChildren(make("p", { class: "error" }, sentence(error.message)));
    }
  }

  #classifier(one, labels) {
    const shown = one.classes.filter((c) => c.predicted || c.probability >= 0.01 || labels.includes(c.label)).slice(0, 8);
    const words = shown.filter((c) => c.name !== c.label).map((c) => `${c.label}: ${c.name}.`).join(" ");
    return make("div", {},
      make("div", { class: "section-head" }, make("h3", {}, `Predicted probability, ${one.name}`)),
      one.problem && make("p", { class: "notice" }, sentence(one.problem)),
      one.notice && make("p", { class: "notice seen" }, one.notice),
      one.abstained && make("p", { class: "notice" }, `No prediction: ${one.abstained}.`),
      ...one.notes.filter((note) => !one.abstained?.includes(note))
        .map((note) => make("p", { class: "notice" }, sentence(note))),
      make("div", { class: "bars saved" }, ...shown.flatMap((c) => this.#label(one, c))),
      one.classes.length ? make("p", { class: "fine" }, `${one.multilabel ? "A line marks the probability from which on a label is predicted. " : ""}Click a label to see which part of the ECG speaks for it. Not a diagnosis.`) : "",
      words && make("p", { class: "fine meanings" }, words));
  }

  #label(one, { label, name, probability, threshold, predicted }) {
    const asked = { model: one.model, label }, fill = make("i"), mark = make("b");
    fill.style.width = `${100 * probability}%`;
    mark.style.left = `${100 * (threshold ?? 0)}%`;
    const button = make("button", { type: "button", "aria-pressed": "false", "data-label": label, title: `${name === label ? "" : `${name}. `}Show which part of the ECG speaks for ${label}`, onclick: () => this.#toggle(asked) }, this.chip(label));
    this.rows.push({ ...asked, button });
    const percent = probability > 0 && probability < 0.01 ? "< 1 %" : `${Math.round(100 * probability)} %`;
    return [button, make("span", { class: "track" }, fill, threshold !== null && one.multilabel && mark),
      make("span", { class: predicted && !one.abstained ? "predicted" : "quiet" }, percent)];
  }

  async #toggle(asked) {
    const same = this.explained && this.explained.label === asked.label && this.explained.model === asked.model;
    this.explained = same ? null : asked;
    this.#mark();
    if (!this.explained) {
      this.caption.textContent = "";
      this.viewer.explain(null);
      return;
    }
    const key = `${asked.model} ${asked.label}`;
    this.caption.textContent = `Finding what speaks for ${asked.label} …`;
    try {
      if (!this.known.has(key)) this.known.set(key, await api.explanation(this.source, asked, { signal: this.stop }));
    } catch (error) {
      if (this.stop.aborted) return;
      this.explained = null;
      this.#mark();
      this.caption.textContent = "";
      toast(sentence(error.message));
      return;
    }
    if (this.explained !== asked) return; // another one was asked for meanwhile
    const made = this.known.get(key);
    const where = made.seconds < this.viewer.signal.seconds - 0.05 ? `, ${made.start.toFixed(1)} to ${(made.start + made.seconds).toFixed(1)} s` : "";
    this.caption.replaceChildren(
      make("i", { class: "for" }), `speaks for ${made.label} `, make("i", { class: "against" }), `against it${where}. `,
      `Colored by what the classifier’s logit falls by where a tenth of a second is a straight line. Not a diagnosis.`);
    this.viewer.explain(made);
  }

  #mark() {
    const on = (one) => String(Boolean(this.explained && this.explained.label === one.label && this.explained.model === one.model));
    for (const row of this.rows) row.button.setAttribute("aria-pressed", on(row));
    this.button.setAttribute("aria-pressed", String(Boolean(this.explained)));
  }
}
