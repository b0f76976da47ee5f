// The fields that patients can be colored and filtered by, and the look of each value.

import { color, svg } from "./dom.js";

// What each field filters out; further columns have the bits after these.
export const BITS = { labels: 1, age: 2, sex: 4, dataset: 8, split: 16, patient: 32 };
const OUTCOMES = { right: 2, "partly right": 1, wrong: 3 };

// Viridis, which is safe for color blindness; without its pale end, and lighter on dark backgrounds.
const RAMP = ["#440154", "#472f7d", "#39568c", "#2a788e", "#1f988b", "#35b779", "#73d055", "#b5cc18"];
const DARK_RAMP = ["#9a72e0", "#7585d8", "#4f97cf", "#35a9c0", "#2fbda2", "#4fcf83", "#8ade5c", "#d4e93a"];
const SHAPES = ["disc", "diamond", "square", "triangle", "ring"];
export const NONE = "unknown";
export const UNLABELED = "no label";
export const GRAY = 8; // the kind of a point that is filtered out: below all others, a disc

// A number as it is shown, without what rounding left.
export const round = (value) => Number(value.toFixed(1));

const dark = () => document.documentElement.dataset.theme === "dark";
const ramp = () => (dark() ? DARK_RAMP : RAMP);

export class Fields {
  constructor(session, columns) {
    this.session = session;
    this.columns = columns;
    this.off = {}; // field -> set of hidden values
    // The first fourteen differ in color, and those of the same hue in shape.
    const pick = this.pick = (i) => ({ ink: `${Math.floor(i / 7) % 2 ? "d" : "c"}${i % 7}`, shape: Math.floor(i / 7) % SHAPES.length });
    const none = { value: NONE, ink: "none", shape: 0 };
    this.all = {
      labels: {
        title: "Diagnosis",
        values: [...session.labels.map((value, i) => ({ value, ...pick(session.label_names[i].slot), ...session.label_names[i] })), { ...none, value: UNLABELED }],
      },
      ...session.splits.length && { split: { title: "Split", values: session.splits.map((value, i) => (value === NONE ? none : { value, ink: ["c5", "c1", "c3"][i], shape: 0 })) } },
      age: { title: "Age", unit: "years", step: 1, band: 10, numbers: Float32Array.from(columns.age, (v) => (v === session.unknown_age ? NaN : v)) },
      sex: { title: "Sex", values: session.sexes.map((value) => (value === NONE ? none : { value, ink: value === "female" ? "c4" : "c0", shape: 0 })) },
    };
    if (session.datasets.length > 1) {
      this.all.dataset = { title: "Dataset", values: session.datasets.map((value, i) => ({ value, ...pick(i) })) };
    }
    for (const name of Object.keys(this.all)) {
      this.#measure(name);
      this.off[name] = new Set();
    }
  }

  // Further columns, which come later: numbers, or few values each.
  add({ facts: { columns }, arrays }) {
    for (const { name: plain, title, values, unit, step } of columns) {
      if (!values) {
        if (this.all[plain]) continue;
        BITS[plain] ??= 1 << Object.keys(BITS).length;
        this.all[plain] = { title, unit, step, numbers: arrays[plain], further: plain !== "heart_rate" };
        this.off[plain] = new Set();
        this.#measure(plain);
        continue;
      }
      const name = `column ${plain}`, labels = new Map(this.all.labels.values.map((one) => [one.value, one]));
      BITS[name] ??= 1 << Object.keys(BITS).length;
      const look = (value, i) => {
        if (value === NONE) return { ink: "none", shape: 0 };
        const known = labels.get(value); // a predicted label has the color of the label
        return known ? { ink: known.ink, shape: known.shape } : this.pick(value in OUTCOMES ? OUTCOMES[value] : i);
      };
      this.columns[name] = arrays[plain];
      this.all[name] = { title, further: true, values: values.map((value, i) => ({ value, ...look(value, i) })) };
      this.off[name] ??= new Set();
      this.#measure(name);
    }
  }

  #measure(name) {
    const field = this.all[name];
    if (field.numbers) Object.assign(Object.assign(field, extent(field)), banded(field));
    else if (name !== "labels") field.codes = this.columns[name]; // several labels per patient: bits
    field.counts = this.countOf(name);
  }

  get names() {
    return Object.keys(this.all).filter((name) => name === "labels" || (this.all[name].varies ?? true) && this.all[name].values.some(({ value }, i) => value !== NONE && this.all[name].counts[i]));
  }

  // The number of the given rows, or of all, with each value of a field.
  countOf(name, rows) {
    const field = this.all[name], counts = new Uint32Array(field.values.length);
    const length = rows?.length ?? this.columns.age.length;
    for (let k = 0; k < length; k++) this.#count(counts, field, rows ? rows[k] : k);
    return counts;
  }

  // The same of the patients that no other field than this one filters out.
  countWhere(name, failed, bit) {
    const field = this.all[name], counts = new Uint32Array(field.values.length);
    for (let i = 0; i < failed.length; i++) if (!(failed[i] & ~bit)) this.#count(counts, field, i);
    return counts;
  }

  #count(counts, field, i) {
    if (field.codes) { counts[field.codes[i]]++; return; }
    const mask = this.columns.labels[i];
    if (!mask) counts[field.values.length - 1]++;
    for (let bits = mask; bits; bits &= bits - 1) counts[31 - Math.clz32(bits & -bits)]++;
  }

  paint(value) { return value.paint ?? color(value.ink); }

  // (4n) bytes for the scatter plot. `failed`: (n) what each patient is filtered out by. A patient with
  // several labels has the color of the first in `wanted`, a mask. `only`: (n) 1 for those in a group.
  look(by, failed, wanted, only = null) {
    const n = this.columns.age.length, look = new Uint32Array(n), field = this.all[by], last = field.values.length - 1;
    const gray = word(color("faded"), GRAY), { labels } = this.columns;
    const paints = Uint32Array.from(field.values, (value) => word(this.paint(value), value.shape + 1));
    const scale = field.numbers && this.#scale(field);
    for (let i = 0; i < n; i++) {
      if (failed[i] || (only && !only[i])) look[i] = gray;
      else if (scale) look[i] = scale(field.numbers[i]);
      else if (field.codes) look[i] = paints[field.codes[i]];
      else {
        const mask = labels[i] & wanted;
        look[i] = paints[mask ? 31 - Math.clz32(mask & -mask) : last];
      }
    }
    return new Uint8Array(look.buffer);
  }

  // The color of a number of a continuous field.
  #scale({ low, high }) {
    const none = word(color("none"), 1), paints = Uint32Array.from({ length: 256 }, (_, i) => word(mixed(i / 255), 1));
    return (v) => (Number.isNaN(v) ? none : paints[Math.round(255 * Math.min(1, Math.max(0, (v - low) / (high - low))))]);
  }
}

// From the 1st to the 99th percentile, so that few extreme values do not use up the colors.
function extent({ numbers, step }) {
  const own = numbers.filter((v) => !Number.isNaN(v)).sort(), known = own.length;
  const at = (share) => round(own[Math.floor(share * (known - 1))] ?? 0), low = at(0.01);
  return { known, varies: own[0] !== own.at(-1), low, high: Math.max(round(low + step), at(0.99)) };
}

// Bands of equal widths, as bars of a histogram; the first and the last are open, unknown values after them.
function banded({ numbers, low, high, step, band }) {
  const unit = 10 ** Math.floor(Math.log10((high - low) / 10)), fit = [1, 2, 5, 10].find((n) => n * unit * 10 >= high - low);
  const size = band ?? Math.max(step, round(fit * unit)), edges = [];
  const [first, last] = band ? [10, 90] : [Math.ceil(low / size) * size, Math.floor(high / size) * size];
  for (let k = 0; first + k * size <= last + step / 2 || !k; k++) edges.push(round(first + k * size));
  const values = [-Infinity, ...edges].map((from, i) => ({
    value: i === 0 ? `under ${edges[0]}` : i === edges.length ? `${from} and over` : `${from}–${round(edges[i] - step)}`,
    low: from, high: Math.fround(round((edges[i] ?? Infinity) - step)), shape: 0, get paint() { return mixed((i + 0.5) / (edges.length + 1)); },
  }));
  const codes = Uint8Array.from(numbers, (v) => (Number.isNaN(v) ? values.length : Math.max(0, Math.min(edges.length, 1 + Math.floor((v - edges[0]) / size + 1e-5)))));
  return { values: [...values, { value: NONE, ink: "none", shape: 0 }], codes };
}

// A color of the ramp, 0 … 1.
export function mixed(share) {
  const stops = ramp(), at = Math.min(1, Math.max(0, share)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at));
  const [a, b] = [bytes(stops[i]), bytes(stops[i + 1])];
  return `#${a.map((v, k) => Math.round(v + (b[k] - v) * (at - i)).toString(16).padStart(2, "0")).join("")}`;
}

export const gradient = () => `linear-gradient(to right, ${ramp().join(", ")})`;

// What a label means, in one line: "First-degree atrioventricular block · SNOMED CT 270492004".
export function meaning(value, all = []) {
  if (!value.name) return "";
  const same = all.filter((one) => one !== value && value.code && one.code === value.code).map((one) => one.value);
  return [
    value.name === value.value ? null : value.name, value.datasets?.length ? `in ${value.datasets.join(", ")}` : null,
    same.length ? `same as ${same.join(", ")}` : null, value.code ? `SNOMED CT ${value.code}` : null,
  ].filter(Boolean).join(" · ");
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

// The same on a canvas.
export function drawSymbol(pen, shape, paint, x, y, r) {
  pen.beginPath();
  if (SHAPES[shape] === "ring") {
    pen.arc(x, y, 0.7 * r, 0, 7);
    pen.strokeStyle = paint;
    pen.lineWidth = 0.5 * r;
    pen.stroke();
    return;
  }
  const corners = { diamond: [[0, -1], [1, 0], [0, 1], [-1, 0]], square: [[-0.82, -0.82], [0.82, -0.82], [0.82, 0.82], [-0.82, 0.82]], triangle: [[0, -1], [1, 0.85], [-1, 0.85]] }[SHAPES[shape]];
  if (corners) corners.forEach(([dx, dy], i) => pen[i ? "lineTo" : "moveTo"](x + r * dx, y + r * dy));
  else pen.arc(x, y, 0.95 * r, 0, 7);
  pen.fillStyle = paint;
  pen.fill();
}

function bytes(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

// Red, green, blue and the kind of a point as one number.
const word = (hex, kind) => new Uint32Array(Uint8Array.of(...bytes(hex), kind).buffer)[0];
