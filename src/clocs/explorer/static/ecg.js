// A canvas with one ECG that can be zoomed and scrolled. Several can move together.

import { drawPaper, heightOf, MM, PULSE, rowsOf, secondsIn, stripsOf } from "./paper.js";

const SMALLEST = 0.2, LARGEST = 4, FIT_SECONDS = 10;

// The state shared by viewers that move together.
export class View extends EventTarget {
  constructor({ layout = "clinical" } = {}) {
    super();
    this.layout = layout;
    this.scale = "fit";
    this.start = 0;
    this.viewers = [];
  }

  get seconds() { return Math.max(...this.viewers.map((viewer) => viewer.signal.seconds), 1); }

  get shown() { return Math.min(...this.viewers.map((viewer) => secondsIn(viewer.width, this.real))); }

  // The scale in use: 1 is actual size.
  get real() {
    if (this.scale !== "fit") return this.scale;
    const width = Math.min(...this.viewers.map((viewer) => viewer.width));
    const seconds = Math.min(FIT_SECONDS, this.seconds);
    return Math.max(SMALLEST, Math.min(1, width / ((PULSE + 2 + 25 * seconds) * MM)));
  }

  set({ layout = this.layout, scale = this.scale, start = this.start }) {
    this.layout = layout;
    this.scale = scale === "fit" ? scale : Math.min(LARGEST, Math.max(SMALLEST, scale));
    this.start = Math.max(0, Math.min(start, this.seconds - this.shown));
    this.draw();
    this.dispatchEvent(new Event("change"));
  }

  zoom(factor) {
    const middle = this.start + this.shown / 2;
    const scale = Math.min(LARGEST, Math.max(SMALLEST, this.real * factor));
    this.scale = scale;
    this.set({ scale, start: middle - this.shown / 2 });
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      if (!this.viewers.length) return;
      const leads = [...new Set(this.viewers.flatMap((viewer) => viewer.signal.leads))];
      const strips = stripsOf(leads, this.layout);
      const rows = rowsOf(this.viewers.map((viewer) => viewer.signal), strips);
      for (const viewer of this.viewers) viewer.draw(strips, rows);
    });
  }

  // The scale as text.
  description() {
    const units = this.viewers.every((viewer) => viewer.signal.unit === "mV") ? "10 mm/mV" : "arbitrary units, not mV";
    const end = Math.min(this.start + this.shown, this.seconds);
    const size = Math.round(100 * this.real);
    return [
      `25 mm/s, ${units}`, size === 100 ? "actual size" : `${size} % of actual size`,
      `${this.start.toFixed(1)}–${end.toFixed(1)} of ${this.seconds.toFixed(1)} s`,
    ];
  }
}

export class Viewer {
  constructor(canvas, signal, view) {
    Object.assign(this, { canvas, signal, view });
    this.pen = canvas.getContext("2d");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `ECG, leads ${signal.leads.join(", ")}, ${signal.seconds.toFixed(1)} seconds`);
    view.viewers.push(this);
    const box = canvas.parentElement;
    this.width = box.clientWidth || 600;
    new ResizeObserver(() => {
      if (!box.clientWidth || box.clientWidth === this.width) return;
      this.width = box.clientWidth;
      view.set({});
    }).observe(box);
    this.#listen();
  }

  draw(strips, rows) {
    const { canvas, view } = this, ratio = window.devicePixelRatio || 1, scale = view.real;
    const width = this.width, height = heightOf(rows) * MM * scale;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${canvas.width / ratio}px`; // whole pixels, because scaling blurs
    canvas.style.height = `${canvas.height / ratio}px`;
    drawPaper(this.pen, { signal: this.signal, strips, rows, width, scale, start: view.start, ratio, explanation: this.explanation });
    canvas.dataset.drawn = "yes";
    canvas.dataset.explained = this.explanation?.label ?? "";
  }

  // Colours behind the traces, beginning where they do if that is out of sight; null takes them away.
  explain(explanation) {
    this.explanation = explanation;
    const { start, shown } = this.view;
    const outside = explanation && (explanation.start < start || explanation.start > start + shown / 2);
    this.view.set(outside ? { start: explanation.start } : {});
  }

  #listen() {
    const { canvas, view } = this;
    let last = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      last = event.clientX;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (last === null) return;
      view.set({ start: view.start - (event.clientX - last) / (25 * MM * view.real) });
      last = event.clientX;
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { last = null; });
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        view.zoom(Math.exp(-event.deltaY * 0.003));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        view.set({ start: view.start + (event.deltaX || event.deltaY) / (25 * MM * view.real) });
      }
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? view.shown : 1;
      const actions = {
        ArrowLeft: () => view.set({ start: view.start - step }),
        ArrowRight: () => view.set({ start: view.start + step }),
        Home: () => view.set({ start: 0 }),
        End: () => view.set({ start: view.seconds }),
        "+": () => view.zoom(1.25), "=": () => view.zoom(1.25), "-": () => view.zoom(0.8),
        0: () => view.set({ scale: "fit", start: 0 }),
      };
      if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      actions[event.key]();
    });
  }

  // The ECG as an image, with a title line.
  picture(title) {
    const ratio = window.devicePixelRatio || 1, head = 34, canvas = document.createElement("canvas");
    canvas.width = this.canvas.width;
    canvas.height = this.canvas.height + head * ratio;
    const pen = canvas.getContext("2d");
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--panel");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(this.canvas, 0, head * ratio);
    pen.scale(ratio, ratio);
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
    pen.font = "600 13px system-ui, sans-serif";
    pen.fillText(`${title}   ${this.view.description().join("   ")}`, 10, 22);
    return new Promise((done) => { canvas.toBlob(done, "image/png"); });
  }
}
