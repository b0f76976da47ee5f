// What is drawn over the points: contours of their density, and the names of the colors.

import { centers, contours } from "./contours.js";
import { $ } from "./dom.js";
import { drawSymbol, GRAY, mixed, round } from "./fields.js";

// More values than colors are hard to tell apart, so their names stand on the map, unless asked otherwise.
const COLORS = 7;

// What the page's state asks for, of the patients that are not gray.
export function overlay({ state, look, fields, columns, filter }) {
  const field = fields.all[state.color], used = field.numbers ? 0 : field.counts.filter(Boolean).length;
  const naming = used > 0 && (state.naming ?? used > COLORS), last = field.values.length - 1;
  $("show-names").disabled = !used;
  $("show-names").setAttribute("aria-pressed", String(naming));
  $("show-contours").setAttribute("aria-pressed", String(state.contours));
  const stands = (i) => look[4 * i + 3] !== GRAY;
  const codeOf = (i) => {
    if (!stands(i)) return -1;
    if (field.codes) return field.codes[i];
    const mask = columns.labels[i] & filter.wanted;
    return mask ? 31 - Math.clz32(mask & -mask) : last;
  };
  const rows = [];
  if (state.contours) for (let i = 0; i < columns.age.length; i++) if (stands(i)) rows.push(i);
  const named = naming ? centers(columns.positions, codeOf, field.values.length) : [];
  return {
    contours: contours(columns.positions, rows),
    names: named.map((at, i) => at && { text: field.values[i].value, at, paint: fields.paint(field.values[i]), shape: field.values[i].shape }).filter(Boolean),
  };
}

// The title and the legend of the map as an image.
export function caption({ state, fields, filter }) {
  const field = fields.all[state.color], off = fields.off[state.color];
  const legend = field.numbers
    ? [0, 0.25, 0.5, 0.75, 1].map((share) => ({ text: `${field.step < 1 ? round(field.low + share * (field.high - field.low)) : Math.round(field.low + share * (field.high - field.low))} ${field.unit}`, paint: mixed(share), shape: 0 }))
    : field.values.filter((value, i) => field.counts[i] && !off.has(value.value)).map((value) => ({ text: value.value, paint: fields.paint(value), shape: value.shape }));
  return [[$("summary").textContent, field.title.toLowerCase(), ...filter.clauses.map((one) => one.words)].join(" · "), legend];
}

// contours: as contours.js makes them.
export function drawContours(pen, scatter, contours, ground, ink) {
  pen.lineCap = "round";
  for (const [paint, width] of [[ground, 3], [ink, 1.1]]) for (const { share, lines } of contours) {
    pen.strokeStyle = paint;
    pen.lineWidth = width;
    pen.globalAlpha = paint === ground ? 0.55 : 1 - 0.6 * share;
    pen.beginPath();
    for (let k = 0; k < lines.length; k += 4) {
      pen.moveTo(...scatter.toScreen(lines[k], lines[k + 1]));
      pen.lineTo(...scatter.toScreen(lines[k + 2], lines[k + 3]));
    }
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

// names: [{text, at: [x, y], paint, shape}]; one that would cover another moves down.
export function drawNames(pen, scatter, names, ground, ink) {
  pen.font = "600 12px system-ui, sans-serif";
  pen.lineJoin = "round";
  const taken = [];
  for (const { text, at, paint, shape } of names) {
    let [x, y] = scatter.toScreen(...at);
    const width = pen.measureText(text).width + 16;
    const hit = () => taken.find((one) => Math.abs(one.y - y) < 17 && x < one.x + one.width && one.x < x + width);
    x = Math.max(4, Math.min(scatter.width - width - 4, x - width / 2));
    y = Math.max(12, Math.min(scatter.height - 12, y));
    for (let tries = 0; tries < 40 && hit(); tries++) y = hit().y + 17;
    taken.push({ x, y, width });
    pen.globalAlpha = 0.86;
    pen.fillStyle = ground;
    pen.beginPath();
    pen.roundRect(x - 3, y - 8.5, width + 5, 17, 5);
    pen.fill();
    pen.globalAlpha = 1;
    drawSymbol(pen, shape, paint, x + 5, y, 4.5);
    pen.fillStyle = ink;
    pen.fillText(text, x + 13, y + 4);
  }
}
