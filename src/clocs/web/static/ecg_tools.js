// The buttons of ECG paper: layout, zoom, gain, speed and calipers, for one view.

import { make, segments } from "./dom.js";
import { GAINS, SPEEDS } from "./paper.js";

const LAYOUTS = { stacked: "Stacked", clinical: "3 × 4", beat: "Average beat" };

export class EcgTools {
  // layouts: those that the signals allow; remember: told what has been set, for the address.
  constructor(view, { layouts, remember, picture }) {
    const group = (name) => make("div", { class: "segments", role: "radiogroup", "aria-label": name });
    const [kinds, gains, speeds] = ["Layout", "Gain in mm/mV", "Speed in mm/s"].map(group);
    const set = (change) => { view.set(change); remember(change); };
    const button = (text, title, onclick, more = {}) => make("button", { type: "button", title, onclick, ...more }, text);
    const zoom = [
      ...[["−", "Zoom out", 0.8], ["+", "Zoom in", 1.25]].map(([sign, title, factor]) => button(sign, title, () => view.zoom(factor), { class: "icon", "aria-label": title })),
      button("Fit", "Fit ten seconds, or as many as can be read (0)", () => view.set({ scale: "fit", start: 0 })),
      button("1:1", "Actual size", () => view.set({ scale: 1 })),
      button("PNG", "Save as an image", picture),
    ];
    const calipers = button("Calipers", "Measure time and amplitude (c)", () => view.set({ measuring: !view.measuring }));
    const marks = button("Marks", "Show P in blue, QRS in vermilion and T in green", () => view.set({ marking: !view.marking }));
    const hint = make("span", { class: "quiet hint" });
    this.kinds = kinds;
    this.paper = make("div", { class: "paper-tools" }, gains, make("span", { class: "unit" }, "mm/mV"), speeds, make("span", { class: "unit" }, "mm/s"), calipers, marks, make("span", { class: "spring" }), ...zoom);
    this.measured = make("p", { class: "measured" }, ...view.viewers.map((viewer) => viewer.calipers.output), hint);
    const draw = () => {
      segments(kinds, layouts.map((name) => [name, LAYOUTS[name]]), view.layout, (layout) => set({ layout }));
      segments(gains, GAINS.map((gain) => [gain, String(gain)]), view.gain, (gain) => set({ gain }));
      segments(speeds, SPEEDS.map((speed) => [speed, String(speed)]), view.speed, (speed) => set({ speed }));
      calipers.setAttribute("aria-pressed", String(view.measuring));
      this.measured.hidden = !view.measuring;
      marks.hidden = view.layout === "beat" || !view.viewers.some((viewer) => viewer.marks && !viewer.over);
      marks.setAttribute("aria-pressed", String(view.marking));
      hint.textContent = `Drag on the paper${view.viewers.some((viewer) => viewer.shownMarks) ? "; ends snap to the marks of waves" : ""}. Or focus it and use the arrow keys (Shift for larger steps, Space for the other end).`;
    };
    view.addEventListener("change", draw);
    draw();
  }
}
