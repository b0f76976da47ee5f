// The same patients as another encoder sees them, beside the map: who is selected or pointed at in one is marked in both.

import * as api from "./api.js";
import { $, make, sentence, toast } from "./dom.js";
import { PatientMap } from "./map.js";

export class SecondMap {
  constructor(app) {
    this.app = app;
    this.number = 0; // of the encoder; 0 while there is one map
    $("beside").addEventListener("change", () => this.show(Number($("beside").value)));
  }

  // What a lasso on this map is said to be on, in the address.
  get key() { return `e${this.number}`; }

  offer(encoders) {
    $("beside").hidden = encoders.length < 2;
    $("beside").replaceChildren(make("option", { value: 0 }, "One map"), ...encoders.slice(1).map((name, i) => make("option", { value: i + 1 }, `Beside: ${name}`)));
    $("map-name").textContent = encoders[0];
    this.show(this.app.state.beside < encoders.length ? this.app.state.beside : 0);
  }

  async show(number) {
    const { app } = this, box = $("second");
    this.number = app.state.beside = number;
    $("beside").value = number;
    box.hidden = $("map-name").hidden = !number;
    $("explore").classList.toggle("two", number > 0);
    app.map.peer = number ? this.#made() : null;
    app.writeAddress();
    if (!number) return;
    $("second-name").textContent = app.session.encoders[number];
    try {
      let state = await this.#load(number);
      while (state === "working" && this.number === number) {
        await new Promise((done) => { setTimeout(done, 1000); });
        if ((await api.projection(number)).state !== "working") state = await this.#load(number);
      }
    } catch (error) {
      toast(sentence(error.message));
    }
  }

  #made() {
    if (this.map) return this.map;
    const { app } = this, map = this.map = new PatientMap($("second"), ...$("second").querySelectorAll("canvas, .tip"));
    map.peer = app.map;
    map.describe = app.map.describe;
    map.addEventListener("choose", (event) => { if (event.detail >= 0) app.choose(app.codeOf(event.detail)); });
    map.addEventListener("group", (event) => { app.map.setLasso(false); app.group(event.detail, this.key); });
    return map;
  }

  async #load(number) {
    const { facts: { projection }, arrays: { positions } } = await api.positionsBy(number);
    if (this.number !== number) return "";
    const { app, map } = this;
    map.absent = Uint8Array.from({ length: positions.length / 2 }, (_, i) => Number.isNaN(positions[2 * i]));
    map.setPlaces(positions.map((v) => (Number.isNaN(v) ? 0 : v)));
    map.setLook(app.look);
    map.show({ selected: app.map.selected, near: app.map.near });
    $("second-note").hidden = projection.kind === "umap";
    $("second-note").textContent = projection.state === "working" ? "Showing PCA while UMAP is running" : projection.description;
    document.documentElement.dataset.second = projection.kind;
    return projection.state;
  }
}
