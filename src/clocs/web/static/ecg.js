// A canvas with one ECG that can be zoomed, scrolled and measured. Several can move together.

import { Calipers } from "./calipers.js";
import { color } from "./dom.js";
import { drawPaper, heightOf, MM, pageOf, rowsOf, secondsIn, stripsOf } from "./paper.js";

const SMALLEST = 0.2, LARGEST = 4;
const FIT_MM = 250, LARGEST_FIT = 1.25; // ten seconds at 25 mm/s
const NARROW = 500, SMALLEST_FIT = 0.75; // of actual size: a narrow screen shows fewer seconds, not smaller ones

// The state shared by viewers that move together.
export class View extends EventTarget {
  constructor({ layout = "clinical", gain = 10, speed = 25 } = {}) {
    super();
    Object.assign(this, { layout, gain, speed, scale: "fit", start: 0, measuring: false, marking: true, viewers: [] });
  }

  get seconds() { return Math.max(...this.viewers.map((viewer) => viewer.signal.seconds), 1); }

  get shown() { return Math.min(this.seconds, ...this.viewers.map((viewer) => secondsIn(viewer.width, this.real, this.speed))); }

  // What is drawn: recordings, or their average beats.
  get #signals() { return this.viewers.flatMap((viewer) => viewer.layers); }

  // From when to when average beats are drawn, about the R peak.
  get #beat() {
    if (this.layout !== "beat") return null;
    const start = Math.min(...this.#signals.map((one) => one.start));
    return { start, seconds: Math.max(...this.#signals.map((one) => one.start + one.seconds)) - start };
  }

  // The scale in use: 1 is actual size.
  get real() {
    if (this.scale !== "fit") return this.scale;
    const width = Math.min(...this.viewers.map((viewer) => viewer.width)), beat = this.#beat;
    const page = beat ? pageOf(beat.seconds, this.speed, 4) : pageOf(Math.min(FIT_MM / this.speed, this.seconds), this.speed);
    return Math.max(beat || width >= NARROW ? SMALLEST : SMALLEST_FIT, Math.min(beat ? 1.5 : LARGEST_FIT, width / (page * MM)));
  }

  set({ layout = this.layout, scale = this.scale, start = this.start, gain = this.gain, speed = this.speed, measuring = this.measuring, marking = this.marking }) {
    Object.assign(this, { layout, gain, speed, measuring, marking });
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

  // Calipers on or off; their paper has the focus, for the arrow keys.
  measure() {
    this.set({ measuring: !this.measuring });
    if (this.measuring && !this.viewers.some(({ canvas }) => canvas === document.activeElement)) this.viewers[0].canvas.focus();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      if (!this.viewers.length) return;
      const signals = this.#signals;
      const strips = stripsOf([...new Set(signals.flatMap((one) => one.leads))], this.layout);
      const rows = rowsOf(signals, strips, this.gain);
      for (const viewer of this.viewers) viewer.draw(strips, rows, this.#beat);
    });
  }

  // The scale as text.
  description() {
    const units = this.viewers.every((viewer) => viewer.signal.unit === "mV") ? `${this.gain} mm/mV` : "arbitrary units, not mV";
    const end = Math.min(this.start + this.shown, this.seconds);
    const size = Math.round(100 * this.real);
    const counts = [...new Set(this.#signals.map((one) => one.count))];
    return [
      `${this.speed} mm/s, ${units}`, size === 100 ? "actual size" : `${size} % of actual size`,
      this.layout === "beat" ? `mean of ${counts.join(" and ")} beats ± standard deviation` : `${this.start.toFixed(1)}–${end.toFixed(1)} of ${this.seconds.toFixed(1)} s`,
    ];
  }
}

export class Viewer {
  // beat: the average beat, if there is one; over: {signal, beat} of a second ECG drawn on the same paper.
  constructor(canvas, { signal, beat = null, over = null }, view) {
    Object.assign(this, { canvas, signal, beat, over, view });
    this.pen = canvas.getContext("2d");
    this.calipers = new Calipers(this);
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

  // The marks of waves that are drawn, by lead; null where there are none.
  get shownMarks() { return this.view.marking && this.view.layout !== "beat" && !this.over && !this.explanation ? this.marks ?? null : null; }

  // marks: {lead: {p, qrs, t}}, each [[onset, peak, offset], …] in s.
  mark(marks) {
    this.marks = marks;
    this.canvas.dataset.marked = Object.keys(marks).join(" ");
    this.view.set({});
  }

  get layers() {
    const both = [this, this.over].filter(Boolean);
    return both.map((one) => (this.view.layout === "beat" ? one.beat : one.signal));
  }

  draw(strips, rows, beat) {
    const { canvas, view, width } = this, ratio = window.devicePixelRatio || 1, scale = view.real;
    const height = heightOf(rows) * MM * scale;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${canvas.width / ratio}px`; // whole pixels, because scaling blurs
    canvas.style.height = `${canvas.height / ratio}px`;
    const [signal, over] = this.layers, { start, gain, speed } = view;
    const explanation = view.layout === "beat" ? null : this.explanation;
    this.places = drawPaper(this.pen, { signal, over, paints: over ? ["first", "second"] : ["trace"], strips, rows, width, scale, start, gain, speed, beat, seconds: view.shown, ratio, explanation, marks: this.shownMarks });
    this.calipers.draw();
    canvas.dataset.drawn = "yes";
    canvas.dataset.explained = this.explanation?.label ?? "";
  }

  // Colors behind the traces, beginning where they do if that is out of sight; null takes them away.
  explain(explanation) {
    this.explanation = explanation;
    const { start, shown } = this.view;
    const outside = explanation && (explanation.start < start || explanation.start > start + shown / 2);
    this.view.set(outside ? { start: explanation.start } : {});
  }

  #listen() {
    const { canvas, view } = this, pointers = new Map();
    const length = () => { const [[a, b], [c, d]] = [...pointers.values()]; return Math.max(1, Math.hypot(a - c, b - d)); };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      if (!pointers.size && this.calipers.grab(event)) return;
      pointers.set(event.pointerId, [event.clientX, event.clientY]);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const last = pointers.get(event.pointerId);
      if (!last) return;
      const before = pointers.size === 2 ? length() : 0;
      pointers.set(event.pointerId, [event.clientX, event.clientY]);
      if (before) view.zoom(length() / before); // two fingers
      else view.set({ start: view.start - (event.clientX - last[0]) / (view.speed * MM * view.real) });
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => pointers.delete(event.pointerId));
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        view.zoom(Math.exp(-event.deltaY * 0.003));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        view.set({ start: view.start + (event.deltaX || event.deltaY) / (view.speed * MM * view.real) });
      }
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || this.calipers.key(event)) return;
      const step = event.shiftKey ? view.shown : 1;
      const actions = {
        ArrowLeft: () => view.set({ start: view.start - step }),
        ArrowRight: () => view.set({ start: view.start + step }),
        Home: () => view.set({ start: 0 }),
        End: () => view.set({ start: view.seconds }),
        "+": () => view.zoom(1.25), "=": () => view.zoom(1.25), "-": () => view.zoom(0.8),
        0: () => view.set({ scale: "fit", start: 0 }),
      };
      if (!actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    });
  }

  // The ECG as an image, under as many lines of text as its width needs.
  picture(title) {
    const ratio = window.devicePixelRatio || 1, canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
    const font = "600 13px system-ui, sans-serif", room = this.canvas.width / ratio - 20;
    pen.font = font;
    const lines = wrapped(pen, [title, ...this.view.description(), this.view.measuring && this.calipers.reading()].filter(Boolean), room);
    const head = 14 + 20 * lines.length;
    canvas.width = this.canvas.width;
    canvas.height = this.canvas.height + head * ratio;
    pen.fillStyle = color("panel");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(this.canvas, 0, head * ratio);
    pen.scale(ratio, ratio);
    pen.fillStyle = color("ink");
    pen.font = font;
    lines.forEach((line, i) => pen.fillText(line, 10, 22 + 20 * i, room));
    return new Promise((done) => { canvas.toBlob(done, "image/png"); });
  }
}

// Parts in lines no wider than the room, a part with others where there is space.
function wrapped(pen, parts, room) {
  const lines = [];
  for (const part of parts) {
    const longer = lines.length ? `${lines.at(-1)}   ${part}` : part;
    if (lines.length && pen.measureText(longer).width <= room) lines[lines.length - 1] = longer;
    else lines.push(part);
  }
  return lines;
}
