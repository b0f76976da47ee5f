// The rooms beside the map: quality, training, results. One at a time; the address holds which.

import { $, make } from "./dom.js";
import { QualityRoom } from "./quality_room.js";
import { TrainingRoom } from "./training_room.js";

const TITLES = { quality: "Quality", training: "Training", results: "Results" };

class ResultsRoom {
  show(box) {
    box.replaceChildren(make("iframe", { id: "report-frame", title: "Results", sandbox: "allow-scripts", src: "/report" }));
  }
}

const MAKERS = { quality: QualityRoom, training: TrainingRoom, results: ResultsRoom };

export class Rooms {
  constructor(app, names) {
    Object.assign(this, { names, now: null, rooms: {} });
    for (const name of names) this.rooms[name] = new MAKERS[name](app);
    const link = (name, title) => make("a", {
      href: name ? `/?room=${name}` : "/", "data-room": name ?? "patients",
      onclick: (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a tab or window of its own
        event.preventDefault();
        app.enter(name);
      },
    }, title);
    $("rooms").replaceChildren(link(null, "Patients"), ...names.map((name) => link(name, TITLES[name])));
    $("rooms").hidden = !names.length;
  }

  // Whether a room is shown instead of the map.
  show(wanted) {
    const name = this.names.includes(wanted) ? wanted : null, box = $("room");
    for (const one of $("rooms").children) {
      if (one.dataset.room === (name ?? "patients")) one.setAttribute("aria-current", "page");
      else one.removeAttribute("aria-current");
    }
    if (name === this.now) return Boolean(name);
    this.rooms[this.now]?.leave?.();
    this.now = name;
    box.hidden = !name;
    box.dataset.room = name ?? "";
    if (!name) { box.replaceChildren(); return false; }
    box.setAttribute("aria-label", TITLES[name]);
    this.rooms[name].show(box);
    return true;
  }
}
