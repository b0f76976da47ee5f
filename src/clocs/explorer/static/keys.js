// The keyboard shortcuts.

import { $ } from "./dom.js";

export function press(app, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.key !== "Escape") return;
  const actions = {
    "?": () => $("keys").showModal(),
    "/": () => app.search.focus(),
    m: () => $("map").focus(),
    e: () => (document.querySelector("#compare:not([hidden]) canvas") ?? $("ecg"))?.focus(),
    n: () => app.detail.box.querySelector(".neighbors .open")?.focus(),
    l: () => app.map.setLasso(!app.map.lassoing),
    u: () => app.session?.uploads && $("open-upload").click(),
    t: () => app.toggleTheme(),
    c: () => (app.state.other ? app.comparison : app.detail).view?.measure(),
    Escape: () => {
      if (app.picking.opener) app.picking.stop().focus();
      else if (app.map.lassoing) app.map.setLasso(false);
      else if (app.state.tab) app.enter(null);
      else if (app.state.other) app.compare(null);
      else if (!app.groups.leave()) app.clear();
    },
  };
  if (!actions[event.key] || !app.session) return;
  event.preventDefault();
  actions[event.key]();
}
