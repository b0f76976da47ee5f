// Heart rates are measured while the page is open: how far that is, and the new values as they come.

import * as api from "./api.js";
import { $ } from "./dom.js";

const AGAIN = 1000; // ms

export class HeartRates {
  constructor(app, state) {
    this.app = app;
    this.state = state;
  }

  // What is missing, in words for the histogram, the legend and the search; "" where nothing is.
  get note() {
    const { state, measured, recordings, description } = this.state;
    if (state === "ready") return description;
    if (state === "failed") return `incomplete: ${description}`;
    return `${Math.floor(100 * measured / recordings)} % measured so far`;
  }

  async follow() {
    this.update();
    while (this.state.state === "working") {
      await new Promise((done) => { setTimeout(done, AGAIN); });
      const next = await api.heartRates().catch(() => this.state);
      if (next.measured !== this.state.measured) await this.#fetch().catch(() => null);
      else this.state = next;
      this.update();
    }
  }

  async #fetch() {
    const { facts, arrays } = await api.heartRateValues();
    this.state = facts.heart_rates;
    this.app.fields.setHeartRates(arrays.heart_rate);
    this.app.showHeartRates();
  }

  // After the state, the filter, the color or the histograms have changed.
  update() {
    document.documentElement.dataset.rates = this.state.state;
    for (const place of document.querySelectorAll("[data-rates-note]")) place.textContent = this.note && `${place.dataset.ratesNote}${this.note}`;
    $("found-rates").hidden = !this.note || !this.app.filter.clauses.some((one) => one.field === "heart_rate");
  }
}
