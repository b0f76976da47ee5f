// The tabs beside the map: quality, training, results. One at a time; the address holds which.

import { $, make } from "./dom.js";
import { QualityTab } from "./quality_tab.js";
import { TrainingTab } from "./training_tab.js";

const TITLES = { quality: "Quality", training: "Training", results: "Results" };

class ResultsTab {
  show(box) {
    box.replaceChildren(make("iframe", { id: "report-frame", title: "Results", sandbox: "allow-scripts", src: "/report" }));
  }
}

const MAKERS = { quality: QualityTab, training: TrainingTab, results: ResultsTab };

export class Tabs {
  constructor(app, names) {
    Object.assign(this, { names, now: null, tabs: {} });
    for (const name of names) this.tabs[name] = new MAKERS[name](app);
    const link = (name, title) => make("a", {
      href: name ? `/?tab=${name}` : "/", "data-tab": name ?? "patients",
      onclick: (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a tab or window of its own
        event.preventDefault();
        app.enter(name);
      },
    }, title);
    $("tabs").replaceChildren(link(null, "Patients"), ...names.map((name) => link(name, TITLES[name])));
    $("tabs").hidden = !names.length;
  }

  // Whether a tab is shown instead of the map.
  show(wanted) {
    const name = this.names.includes(wanted) ? wanted : null, box = $("tab");
    for (const one of $("tabs").children) {
      if (one.dataset.tab === (name ?? "patients")) one.setAttribute("aria-current", "page");
      else one.removeAttribute("aria-current");
    }
    if (name === this.now) return Boolean(name);
    this.tabs[this.now]?.leave?.();
    this.now = name;
    box.hidden = !name;
    box.dataset.tab = name ?? "";
    if (!name) { box.replaceChildren(); return false; }
    box.setAttribute("aria-label", TITLES[name]);
    this.tabs[name].show(box);
    return true;
  }
}
