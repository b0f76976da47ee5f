// The fields that patients can be coloured and filtered by, and the look of each value.

import { colour, svg } from "./dom.js";

const AGES = [[0, 20], [20, 30], [30, 40], [40, 50], [50, 60], [60, 70], [70, 80], [80, 255]];
// Viridis, which is safe for colour blindness; without its pale end, and lighter on dark backgrounds.
const RAMP = ["#440154", "#472f7d", "#39568c", "#2a788e", "#1f988b", "#35b779", "#73d055", "#b5cc18"];
const DARK_RAMP = ["#9a72e0", "#7585d8", "#4f97cf", "#35a9c0", "#2fbda2", "#4fcf83", "#8ade5c", "#d4e93a"];
const SHAPES = ["disc", "diamond", "square", "triangle", "ring"];
export const NONE = "unknown";

export class Fields {
  constructor(session, columns) {
    this.session = session;
    this.columns = columns;
    this.off = {}; // field -> set of hidden values
    const dark = () => document.documentElement.dataset.theme === "dark";
    const pick = (i) => ({ ink: `c${i % 7}`, shape: Math.floor(i / 7) % SHAPES.length });
    const none = { value: NONE, ink: "none", shape: 0 };
    const known = (list, extra) => [...list, extra];
    this.all = {
      labels: {
        title: "Diagnosis",
        values: known(session.labels.map((value, i) => ({ value, ...pick(i) })), { ...none, value: "no label" }),
      },
      ...session.splits.length && { split: { title: "Split", values: session.splits.map((value, i) => (value === NONE ? none : { value, ink: ["c5", "c1", "c3"][i], shape: 0 })) } },
      age: {
        title: "Age",
        values: known(AGES.map(([low, high], i) => ({
          value: high === 255 ? `${low} and over` : low ? `${low}–${high - 1}` : `under ${high}`,
          get paint() { return (dark() ? DARK_RAMP : RAMP)[i]; }, shape: 0,
        })), none),
      },
      sex: { title: "Sex", values: session.sexes.map((value) => (value === NONE ? none : { value, ink: value === "female" ? "c4" : "c0", shape: 0 })) },
    };
    if (session.datasets.length > 1) {
      this.all.dataset = { title: "Dataset", values: session.datasets.map((value, i) => ({ value, ...pick(i) })) };
    }
    for (const [name, field] of Object.entries(this.all)) {
      field.codes = this.#codes(name);
      field.counts = this.countOf(name);
      this.off[name] = new Set();
    }
  }

  get names() {
    return Object.keys(this.all).filter((name) => name === "labels" || this.all[name].counts.filter(Boolean).length > 1
      || this.all[name].counts[this.all[name].values.length - 1] < this.columns.age.length);
  }

  #codes(name) {
    if (name === "labels") return null; // several per patient: bits
    if (name !== "age") return this.columns[name];
    const unknown = this.session.unknown_age;
    const band = Array.from({ length: 256 }, (_, age) => (age === unknown ? AGES.length : AGES.findIndex(([low, high]) => age >= low && age < high)));
    return this.columns.age.map((age) => band[age]);
  }

  // The number of the given rows, or of all, with each value of a field.
  countOf(name, rows) {
    const field = this.all[name], counts = new Uint32Array(field.values.length);
    const length = rows?.length ?? this.columns.age.length;
    for (let k = 0; k < length; k++) {
      const i = rows ? rows[k] : k;
      if (field.codes) { counts[field.codes[i]]++; continue; }
      const mask = this.columns.labels[i];
      if (!mask) counts[field.values.length - 1]++;
      for (let bits = mask; bits; bits &= bits - 1) counts[31 - Math.clz32(bits & -bits)]++;
    }
    return counts;
  }

  paint(value) { return value.paint ?? colour(value.ink); }

  // (4n) bytes for the scatter plot, and the number of patients shown. A patient with several labels
  // is shown if any of them is, in the colour of the first that is.
  look(by) {
    const n = this.columns.age.length, look = new Uint8Array(4 * n);
    const field = this.all[by], last = field.values.length - 1;
    const paints = field.values.map((value) => [...bytes(this.paint(value)), value.shape + 1]);
    const hidden = Object.entries(this.all).filter(([name, f]) => f.codes && this.off[name].size)
      .map(([name, f]) => [f.codes, f.values.map((value) => this.off[name].has(value.value))]);
    const labels = this.all.labels.values;
    let on = 0;
    labels.slice(0, -1).forEach((value, i) => { if (!this.off.labels.has(value.value)) on |= 1 << i; });
    const unlabelled = !this.off.labels.has(labels.at(-1).value);
    let shown = 0;
    for (let i = 0; i < n; i++) {
      const mask = this.columns.labels[i] & on;
      if (this.columns.labels[i] ? !mask : !unlabelled) continue;
      if (hidden.some(([codes, off]) => off[codes[i]])) continue;
      const code = field.codes ? field.codes[i] : mask ? 31 - Math.clz32(mask & -mask) : last;
      look.set(paints[code], 4 * i);
      shown++;
    }
    return { look, shown };
  }
}

export function symbol(shape, paint) {
  const box = svg("svg", { viewBox: "-1 -1 2 2", "aria-hidden": "true" });
  const drawn = {
    disc: () => svg("circle", { r: 0.95 }),
    diamond: () => svg("path", { d: "M0-1L1 0L0 1L-1 0z" }),
    square: () => svg("path", { d: "M-.82-.82H.82V.82H-.82z" }),
    triangle: () => svg("path", { d: "M0-1L1 .85H-1z" }),
    ring: () => svg("circle", { r: 0.7, "stroke-width": 0.5 }),
  }[SHAPES[shape]]();
  if (SHAPES[shape] === "ring") { drawn.setAttribute("fill", "none"); drawn.setAttribute("stroke", paint); }
  else drawn.setAttribute("fill", paint);
  box.append(drawn);
  return box;
}

function bytes(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}
