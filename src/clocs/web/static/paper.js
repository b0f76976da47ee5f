// ECG paper: strips of leads at a speed (25 or 50 mm/s) and a gain (5, 10 or 20 mm/mV) on a grid of
// 1 and 5 mm. Draws on any canvas. Units other than mV are scaled to fit and have no calibration pulse.

import { color } from "./dom.js";

export const MM = 96 / 25.4; // CSS pixels per millimetre
export const GAINS = [5, 10, 20], SPEEDS = [25, 50];
const USUAL = 10; // mm/mV, in which deflections are kept
const BETWEEN = 4; // mm between two average beats
const TALLEST = 60; // mm above or below the baseline at which a trace is cut off
const ROOM = 50; // mm at 10 mm/mV that the tallest complex gets in any case; rarer and taller spikes are cut off
const NAME = 4.6; // height of a lead's name in mm
const BESIDE = 1.2; // mm between a strip's left edge and its lead's name
export const PULSE = 14; // mm left of the traces
const CLINICAL = [["I", "aVR", "V1", "V4"], ["II", "aVL", "V2", "V5"], ["III", "aVF", "V3", "V6"]];
const STANDARD = ["I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6"];

const hasClinical = (signal) => CLINICAL.flat().filter((lead) => signal.leads.includes(lead)).length >= 6;

// The layouts in which all of these can be drawn.
export function layoutsOf(signals, beats) {
  return ["stacked", signals.every(hasClinical) && "clinical", beats.every(Boolean) && "beat"].filter(Boolean);
}

// The wanted layout, or the first of them where it cannot be drawn; a phone is too narrow for four columns.
export const layoutFrom = (layouts, wanted) => (layouts.includes(wanted) && !(wanted === "clinical" && window.innerWidth < 500) ? wanted : layouts[0]);

// Leads in the usual order, others after them.
export function ordered(leads) {
  return [...STANDARD.filter((lead) => leads.includes(lead)), ...leads.filter((lead) => !STANDARD.includes(lead))];
}

// Where each lead goes: [{row, from, to, lead}], from and to as shares of the window; average beats
// have columns instead.
export function stripsOf(leads, layout) {
  if (layout === "beat") {
    const each = Math.ceil(leads.length / 4);
    return ordered(leads).map((lead, i) => ({ row: i % each, column: Math.floor(i / each), lead }));
  }
  if (layout !== "clinical") return ordered(leads).map((lead, row) => ({ row, from: 0, to: 1, lead }));
  const strips = CLINICAL.flatMap((names, row) => names.map((lead, i) => ({ row, from: i / 4, to: (i + 1) / 4, lead })));
  return [...strips, { row: 3, from: 0, to: 1, lead: "II" }];
}

// Deflection of each lead in mm at 10 mm/mV about its median, cached with the signal, and its range; beyond 5 mV
// without the extreme thousandth of the samples, so that a single spike does not need a whole page.
export function deflections(signal) {
  if (signal.mm) return signal.mm;
  signal.mm = new Map();
  signal.reach = new Map();
  signal.perUnit = new Map();
  for (const [lead, values] of signal.traces) {
    const sorted = values.filter((v) => !Number.isNaN(v)).sort();
    const middle = sorted.length ? sorted[sorted.length >> 1] : 0;
    const at = (share) => (sorted.length ? sorted[Math.floor((sorted.length - 1) * share)] - middle : 0);
    const low = at(0.001), high = at(0.999), reach = Math.max(high, -low);
    const factor = signal.unit === "mV" ? USUAL : reach > 0 ? 12 / reach : 1;
    signal.perUnit.set(lead, factor);
    signal.mm.set(lead, values.map((v) => (v - middle) * factor));
    signal.reach.set(lead, [[low, at(0)], [high, at(1)]].map(([usual, end]) => Math.max(Math.abs(usual * factor), Math.min(ROOM, Math.abs(end * factor)))));
  }
  return signal.mm;
}

// Space in mm above and below each row's baseline, enough for all of these signals at this gain.
export function rowsOf(signals, strips, gain) {
  const rows = [];
  for (const { row, lead } of strips) {
    rows[row] ??= { above: Math.max(9, gain - 1), below: 5 }; // a pulse fits
    for (const signal of signals) {
      if (!deflections(signal).has(lead)) continue;
      const [low, high] = signal.reach.get(lead).map((mm) => Math.min(TALLEST, (mm * gain) / USUAL));
      rows[row].above = Math.max(rows[row].above, high + NAME);
      rows[row].below = Math.max(rows[row].below, low + 1.5);
    }
  }
  return rows;
}

export const heightOf = (rows) => 5 * Math.ceil((rows.reduce((sum, r) => sum + r.above + r.below, 0) + 4) / 5);

export const secondsIn = (width, scale, speed) => Math.max(0.2, (width / (MM * scale) - PULSE - 2) / speed);

// Millimetres of paper that hold so many seconds, or average beats of so many.
export const pageOf = (seconds, speed, columns = 0) => PULSE + 2 + (columns ? columns * (seconds * speed + BETWEEN) - BETWEEN : seconds * speed);

// Where everything is in CSS pixels: one place per strip, with the time at its left edge and its length.
// beat: {start, seconds} of average beats.
export function placesOf({ strips, rows, width, scale, start, seconds, gain, speed, beat }) {
  const mm = MM * scale, left = PULSE * mm, second = speed * mm;
  const columns = 1 + Math.max(...strips.map(({ column = 0 }) => column));
  const pitch = beat && Math.max(beat.seconds * second + BETWEEN * mm, (width - left) / columns); // all of the width
  const baselines = [];
  rows.reduce((y, row, i) => { baselines[i] = (y + row.above) * mm; return y + row.above + row.below; }, 2);
  return strips.map(({ row, from, to, column, lead }) => ({
    row, lead, second, mm, tall: (gain / USUAL) * mm, base: baselines[row], first: column === undefined ? from === 0 : column === 0,
    top: baselines[row] - rows[row].above * mm, bottom: baselines[row] + rows[row].below * mm,
    ...(column === undefined ? { x: left + from * seconds * second, begin: start + from * seconds, seconds: (to - from) * seconds }
      : { x: left + column * pitch, begin: beat.start, seconds: beat.seconds }),
  }));
}

// Draws one page. width: CSS pixels; scale: 1 for actual size; from start on, so many seconds. explanation: bands of
// color behind the traces, or nothing; over: a second signal; paints: of the first and the second.
// marks: of each lead the onset, peak and offset of its waves, in s.
export function drawPaper(pen, { signal, over = null, paints = ["trace"], explanation = null, marks = null, ratio = 1, ...page }) {
  const { rows, width, scale, gain } = page, mm = MM * scale, height = heightOf(rows) * mm;
  const places = placesOf(page), paper = color("paper");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = paper;
  pen.fillRect(0, 0, width, height);
  if (explanation) for (const place of places) shade(pen, explanation, place);
  grid(pen, { width, height, mm, ratio });
  pen.lineJoin = "round";
  const layers = [signal, over].filter(Boolean);
  for (const place of places) {
    pen.lineWidth = Math.max(0.9, Math.min(1.4, 1.1 * scale));
    pen.save();
    pen.beginPath();
    pen.rect(0, place.top, width, place.bottom - place.top);
    pen.clip(); // no complex reaches into another row
    layers.forEach((one, i) => {
      const values = deflections(one).get(place.lead);
      if (!values) return;
      pen.strokeStyle = pen.fillStyle = color(paints[i]);
      if (one.spread) spread(pen, values, one, place);
      trace(pen, values, one, place);
    });
    if (marks?.[place.lead]) waves(pen, signal, place, marks[place.lead]);
    pen.restore();
    pen.strokeStyle = pen.fillStyle = color("trace");
    if (place.first && signal.unit === "mV") pulse(pen, place.x - 11 * mm, place.base, { mm, speed: page.speed, gain });
    if (!place.first && !signal.spread) {
      pen.beginPath();
      pen.moveTo(place.x, place.base - 3 * mm);
      pen.lineTo(place.x, place.base + 3 * mm);
      pen.stroke();
    }
    const found = layers.filter((one) => deflections(one).has(place.lead));
    const text = found.length ? place.lead : `${place.lead} –`;
    pen.font = `600 ${Math.max(10, Math.min(14, 13 * Math.sqrt(scale)))}px system-ui, sans-serif`;
    const wide = BESIDE + pen.measureText(text).width / mm + 1;
    const peak = Math.max(0, ...found.map((one) => highest(one.mm.get(place.lead), one, place.begin, (wide * mm) / place.second))) * (gain / USUAL);
    label(pen, text, place.x + BESIDE * mm, place.base - Math.min(rows[place.row].above - NAME / 2, Math.max(6.2, peak + NAME / 2 + 0.4)) * mm); // never covers a QRS complex
  }
  return places;
}

function grid(pen, { width, height, mm, ratio }) {
  for (const [step, paint, line] of [[1, "minor", 0.6], [5, "major", 0.8]]) {
    if (step * mm < 2.2) continue; // too fine to see
    // The 5 mm lines are on whole pixels, all equally sharp; the fine ones would then be uneven.
    const at = step === 5 ? (v) => (Math.round(v * mm * ratio) + 0.5) / ratio : (v) => v * mm;
    pen.beginPath();
    for (let x = 0; x <= width / mm; x += step) { pen.moveTo(at(x), 0); pen.lineTo(at(x), height); }
    for (let y = 0; y <= height / mm; y += step) { pen.moveTo(0, at(y)); pen.lineTo(width, at(y)); }
    pen.strokeStyle = color(paint);
    pen.lineWidth = line;
    pen.stroke();
  }
}

// A band behind a strip: one color for what speaks for the label, another against it.
function shade(pen, { shares, rate, start, samples }, { lead, x: x0, top, bottom, second, begin: from, seconds }) {
  const values = shares.get(lead);
  if (!values) return;
  const begin = Math.max(from, start), end = Math.min(from + seconds, start + samples / rate);
  const x = (time) => Math.round(x0 + (time - from) * second);
  const paints = [color("against"), color("for")];
  for (let px = x(begin); px < x(end); px++) {
    const time = from + (px + 0.5 - x0) / second;
    const value = values[Math.min(samples - 1, Math.max(0, Math.round((time - start) * rate)))];
    if (Number.isNaN(value)) continue;
    pen.globalAlpha = 0.75 * Math.min(1, Math.abs(value));
    pen.fillStyle = paints[Number(value > 0)];
    pen.fillRect(px, top, 1, bottom - top);
  }
  pen.globalAlpha = 1;
}

// One standard deviation above and below an average beat.
function spread(pen, values, signal, { lead, x, base, tall, second, begin }) {
  const sizes = signal.spread.get(lead), factor = signal.perUnit.get(lead), at = (i) => x + (i / signal.rate + signal.start - begin) * second;
  pen.beginPath();
  for (let i = 0; i < values.length; i++) pen.lineTo(at(i), base - (values[i] + sizes[i] * factor) * tall);
  for (let i = values.length - 1; i >= 0; i--) pen.lineTo(at(i), base - (values[i] - sizes[i] * factor) * tall);
  pen.globalAlpha = 0.22;
  pen.fill();
  pen.globalAlpha = 1;
}

// A polyline; where several samples share a pixel, its lowest and highest.
function trace(pen, values, signal, { x: x0, base, tall, second, begin: from, seconds }) {
  const { rate } = signal, offset = signal.start || 0;
  const first = Math.max(0, Math.ceil((from - offset) * rate));
  const last = Math.min(values.length - 1, Math.floor((from + seconds - offset) * rate));
  const x = (i) => x0 + (i / rate + offset - from) * second;
  const each = rate / second; // samples per pixel
  pen.beginPath();
  let open = false;
  const point = (px, v) => {
    if (Number.isNaN(v)) { open = false; return; }
    pen[open ? "lineTo" : "moveTo"](px, base - v * tall);
    open = true;
  };
  if (each <= 2) for (let i = first; i <= last; i++) point(x(i), values[i]);
  else for (let i = first; i <= last;) {
    const next = Math.min(last + 1, Math.max(i + 1, first + Math.ceil((Math.floor((i - first) / each) + 1) * each)));
    let low = i, high = i;
    for (let j = i; j < next; j++) { if (values[j] < values[low]) low = j; if (values[j] > values[high]) high = j; }
    const px = x(i);
    if (low < high) { point(px, values[low]); point(px, values[high]); } else { point(px, values[high]); point(px, values[low]); }
    i = next;
  }
  pen.stroke();
}

// Waves in their colors, with a tick above each peak.
function waves(pen, signal, place, marks) {
  const { lead, x, base, tall, second, begin, seconds, mm } = place, values = deflections(signal).get(lead), end = begin + seconds;
  if (!values) return;
  pen.lineWidth *= 1.7;
  for (const [name, own] of Object.entries(marks)) {
    pen.strokeStyle = color(`wave-${name}`);
    for (const [onset, peak, offset] of own) {
      const from = Math.max(onset, begin), to = Math.min(offset, end), at = x + (peak - begin) * second;
      if (from >= to) continue;
      trace(pen, values, signal, { ...place, x: x + (from - begin) * second, begin: from, seconds: to - from });
      const y = base - values[Math.min(values.length - 1, Math.round(peak * signal.rate))] * tall;
      if (peak < begin || peak > end || Number.isNaN(y)) continue;
      pen.beginPath();
      pen.moveTo(at, y - 0.9 * mm);
      pen.lineTo(at, y - 2.4 * mm);
      pen.stroke();
    }
  }
}

function pulse(pen, x, base, { mm, gain, speed }) { // 1 mV for 200 ms, or for 100 ms where these take 5 mm
  const wide = Math.min(5, 0.2 * speed);
  pen.beginPath();
  [[0, 0], [2, 0], [2, gain], [2 + wide, gain], [2 + wide, 0], [9, 0]].forEach(([dx, dy], i) => pen[i ? "lineTo" : "moveTo"](x + dx * mm, base - dy * mm));
  pen.stroke();
}

function highest(values, signal, from, seconds) { // above the baseline, in mm
  const first = Math.max(0, Math.round((from - (signal.start || 0)) * signal.rate));
  let high = 0;
  for (let i = first; i < Math.min(values.length, first + seconds * signal.rate); i++) if (values[i] > high) high = values[i];
  return high;
}

function label(pen, text, x, y) {
  pen.textBaseline = "middle";
  pen.save();
  pen.strokeStyle = color("paper");
  pen.lineWidth = 3;
  pen.strokeText(text, x, y);
  pen.restore();
  pen.fillText(text, x, y);
}

// A small image of one lead, without grid or scale, for lists.
export function drawThumbnail(canvas, signal, lead, seconds = 10) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 184, height = canvas.clientHeight || 48;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const values = deflections(signal).get(lead);
  if (!values) return;
  const end = Math.min(values.length, Math.round(seconds * signal.rate));
  let low = Infinity, high = -Infinity;
  for (let i = 0; i < end; i++) { if (values[i] < low) low = values[i]; if (values[i] > high) high = values[i]; }
  const mm = Math.min((height - 4) / Math.max(high - low, 8), height / 14);
  const base = height / 2 + ((high + low) / 2) * mm;
  pen.strokeStyle = color("trace");
  pen.lineWidth = 0.9;
  pen.lineJoin = "round";
  pen.beginPath();
  const columns = Math.min(end, Math.round(width * 2));
  for (let c = 0; c < columns; c++) {
    const a = Math.floor((c * end) / columns), b = Math.max(a + 1, Math.floor(((c + 1) * end) / columns));
    let least = a, most = a;
    for (let i = a; i < b; i++) { if (values[i] < values[least]) least = i; if (values[i] > values[most]) most = i; }
    const x = (c / columns) * width;
    for (const i of least < most ? [least, most] : [most, least]) pen[c || i !== Math.min(least, most) ? "lineTo" : "moveTo"](x, base - values[i] * mm);
  }
  pen.stroke();
}
