// Calipers on ECG paper: two ends in one lead, and the time and amplitude between them. Ends are kept as
// time and deflection, so that they stay where they are on the ECG when the paper moves.

import { color, make, signed } from "./dom.js";

const NEAR = { touch: 22, mouse: 10, pen: 10 }; // CSS pixels around an end in which a pointer takes hold of it
const SNAP = 5; // CSS pixels from a mark
const SMALL = { time: 0.004, mm: 0.1 }, LARGE = { time: 0.04, mm: 1 }; // steps of the arrow keys: a tenth of a small square, and one

export class Calipers {
  constructor(viewer) {
    this.viewer = viewer;
    this.output = make("output", { class: "reading" });
    this.taken = {}; // of recordings, and of average beats, which have a time of their own
  }

  // ends: [{time, mm}, {time, mm}], mm at 10 mm/mV above the baseline, or null where nothing was measured.
  get own() { return (this.taken[this.viewer.view.layout === "beat"] ??= { ends: null, lead: null, row: -1, active: 1 }); }

  get on() { return this.viewer.view.measuring; }

  // The strip that is measured; in another layout, the one that holds the same moment of the same lead.
  get #place() {
    const { ends, lead, row } = this.own, own = this.viewer.places?.filter((place) => place.lead === lead) ?? [];
    const holds = ({ begin, seconds }) => ends?.some(({ time }) => time >= begin && time <= begin + seconds);
    return own.find((place) => place.row === row && holds(place)) ?? own.find(holds) ?? own.find((place) => place.row === row);
  }

  // In the middle of the paper, for fingers and keys to move.
  #begin() {
    const { places } = this.viewer, place = places.find(({ lead }) => lead === "II") ?? places[0];
    const half = Math.min(0.4, place.seconds / 4), middle = place.begin + place.seconds / 2;
    Object.assign(this.own, { lead: place.lead, row: place.row, active: 1 });
    this.own.ends = [{ time: middle - half, mm: 0 }, { time: middle + half, mm: 5 }];
  }

  #at({ time, mm }) {
    const { x, begin, second, base, tall } = this.#place;
    return [x + (time - begin) * second, base - mm * tall];
  }

  #from([px, py]) {
    const { x, begin, second, base, tall } = this.#place;
    return { time: begin + (px - x) / second, mm: (base - py) / tall };
  }

  // An end near a mark of its lead is at the mark, and on the trace if that is near, too.
  #snapped(end) {
    const { signal, shownMarks } = this.viewer, { second, tall } = this.#place, times = Object.values(shownMarks?.[this.own.lead] ?? {}).flat(2);
    const time = times.reduce((best, one) => (Math.abs(one - end.time) < Math.abs(best - end.time) ? one : best), Infinity);
    if (Math.abs(time - end.time) * second > SNAP) return end;
    const mm = signal.mm?.get(this.own.lead)?.[Math.round(time * signal.rate)] ?? NaN;
    return { time, mm: Math.abs(mm - end.mm) * tall <= SNAP ? mm : end.mm };
  }

  // Takes hold of an end, or begins anew where there is none; false where calipers are off.
  grab(event) {
    if (!this.on || !this.viewer.places) return false;
    const { canvas } = this.viewer, frame = canvas.getBoundingClientRect();
    const where = ({ clientX, clientY }) => [
      Math.max(0, Math.min(frame.width, clientX - frame.left)), Math.max(0, Math.min(frame.height, clientY - frame.top)),
    ];
    const at = where(event);
    const far = this.#place && this.own.ends ? this.own.ends.map((end) => Math.hypot(...this.#at(end).map((v, i) => v - at[i]))) : [];
    if (Math.min(...far) <= NEAR[event.pointerType]) this.own.active = far[0] < far[1] ? 0 : 1;
    else {
      const place = nearest(this.viewer.places, at);
      Object.assign(this.own, { lead: place.lead, row: place.row, active: 1 });
      this.own.ends = [{ time: place.begin, mm: 0 }]; // so that the strip is this one
      this.own.ends = [this.#snapped(this.#from(at)), this.#snapped(this.#from(at))];
    }
    canvas.setPointerCapture(event.pointerId);
    const move = (moved) => {
      if (moved.pointerId !== event.pointerId || !this.own.ends) return;
      this.own.ends[this.own.active] = this.#snapped(this.#from(where(moved)));
      this.viewer.view.draw();
    };
    const stop = (ended) => {
      if (ended.pointerId !== event.pointerId) return;
      canvas.removeEventListener("pointermove", move);
      for (const name of ["pointerup", "pointercancel"]) canvas.removeEventListener(name, stop);
    };
    canvas.addEventListener("pointermove", move);
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, stop);
    this.viewer.view.draw();
    return true;
  }

  // Whether a key was meant for the calipers.
  key(event) {
    if (!this.on || !this.viewer.places?.length) return false;
    if (!this.own.ends && !/^Arrow/.test(event.key)) return false;
    if (!this.own.ends) this.#begin();
    const step = event.shiftKey ? LARGE : SMALL, end = this.own.ends[this.own.active];
    const actions = {
      ArrowLeft: () => { end.time -= step.time; }, ArrowRight: () => { end.time += step.time; },
      ArrowUp: () => { end.mm += step.mm; }, ArrowDown: () => { end.mm -= step.mm; },
      " ": () => { this.own.active = 1 - this.own.active; },
      Escape: () => this.viewer.view.set({ measuring: false }),
    };
    if (!actions[event.key]) return false;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
    this.viewer.view.draw();
    return true;
  }

  // "II: 812 ms, 74 bpm, 0.85 mV"
  reading() {
    const { ends, lead } = this.own;
    if (!ends) return "";
    const [a, b] = ends, signal = this.viewer.layers.find((one) => one.perUnit?.has(lead)) ?? this.viewer.signal;
    const time = Math.abs(b.time - a.time), size = (b.mm - a.mm) / (signal.perUnit?.get(lead) ?? 1);
    const amount = signal.unit === "mV" ? `${signed(size, 2)} mV` : `${signed(size, 0)} ${signal.unit}`;
    return `${lead}: ${Math.round(1000 * time)} ms, ${time >= 0.1 ? `${Math.round(60 / time)} bpm, ` : ""}${amount}`;
  }

  draw() {
    const { canvas, pen } = this.viewer;
    canvas.classList.toggle("measuring", this.on);
    const text = this.on ? this.reading() : "";
    if (this.output.textContent !== text) this.output.textContent = text;
    this.output.hidden = !this.on;
    if (!this.on || !this.own.ends || !this.#place) return;
    const { top, bottom } = this.#place, [[ax, ay], [bx, by]] = this.own.ends.map((end) => this.#at(end));
    const paint = color("caliper");
    pen.save();
    pen.fillStyle = pen.strokeStyle = paint;
    pen.globalAlpha = 0.12;
    pen.fillRect(Math.min(ax, bx), top, Math.abs(bx - ax), bottom - top);
    pen.globalAlpha = 1;
    pen.lineWidth = 1.2;
    pen.beginPath();
    for (const x of [ax, bx]) { pen.moveTo(x, top); pen.lineTo(x, bottom); }
    pen.stroke();
    pen.setLineDash([4, 3]);
    pen.beginPath();
    for (const y of [ay, by]) { pen.moveTo(Math.min(ax, bx) - 8, y); pen.lineTo(Math.max(ax, bx) + 8, y); }
    pen.stroke();
    pen.setLineDash([]);
    [[ax, ay], [bx, by]].forEach(([x, y], i) => {
      pen.beginPath();
      pen.arc(x, y, 5, 0, 7);
      pen.fillStyle = i === this.own.active ? paint : color("paper");
      pen.fill();
      pen.stroke();
    });
    this.#tag(text.slice(text.indexOf(":") + 2), (ax + bx) / 2, top);
    pen.restore();
  }

  // The reading beside what is measured, within the paper.
  #tag(text, x, top) {
    const { pen, width } = this.viewer, high = 20;
    pen.font = "600 12px system-ui, sans-serif";
    const wide = pen.measureText(text).width + 14;
    const left = Math.max(2, Math.min(width - wide - 2, x - wide / 2)), y = Math.max(2, top - high / 2);
    pen.fillStyle = color("caliper");
    pen.beginPath();
    pen.roundRect(left, y, wide, high, 5);
    pen.fill();
    pen.fillStyle = color("paper");
    pen.textBaseline = "middle";
    pen.fillText(text, left + 7, y + high / 2 + 0.5);
  }
}

// The strip under a point, or the nearest to it.
function nearest(places, [x, y]) {
  const beyond = (v, low, high) => Math.max(low - v, 0, v - high);
  const far = (place) => 10 * beyond(y, place.top, place.bottom) + beyond(x, place.x, place.x + place.seconds * place.second);
  return places.reduce((best, place) => (far(place) < far(best) ? place : best));
}
