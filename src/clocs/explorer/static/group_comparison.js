// Two groups side by side: shares and medians with 95 % intervals, and the average beat of each lead.

import * as api from "./api.js";
import { make, sentence, signed, svg } from "./dom.js";

const WIDE = 150, TALL = 26; // of the plot in a row
const BEAT = [170, 110]; // of a lead

export async function showComparison(box, groups, { stop, beats, back }) {
  const drawn = make("section", { id: "average-beats" }, make("h3", {}, "Average beat"), make("p", { class: "quiet", role: "status" }, "Averaging …"));
  const found = await api.comparison(groups.map((group) => group.codes), { signal: stop });
  if (stop.aborted) return;
  box.replaceChildren(
    make("div", { class: "who" }, make("h2", {}, `${groups[0].name} and ${groups[1].name}`),
      make("span", { class: "end" }, make("button", { type: "button", title: "Back to the group (Esc)", onclick: back }, "Back to the group")),
      found.in_both ? make("p", { class: "notice" }, `${found.in_both.toLocaleString()} ${found.in_both === 1 ? "patient is" : "patients are"} in both groups, so the two are not independent.`) : ""),
    make("p", { class: "keys-row" }, ...groups.map((group, i) => make("span", { class: `key group-${i}` }, make("i"), `${group.name}: ${found.patients[i].toLocaleString()}`))),
    found.medians.length ? medians(found.medians, groups) : "",
    ...found.sections.map((section) => shares(section, groups)),
    make("p", { class: "fine" }, "Shares with Wilson's 95 % interval, medians with that of their ranks, of the patients in whom they are known. A patient with several labels is counted once per label."),
    ...(beats ? [drawn] : []));
  box.focus();
  if (!beats) return;
  try {
    const pair = await Promise.all(groups.map((group) => api.groupBeats(group.codes, { signal: stop })));
    if (!stop.aborted) drawn.replaceChildren(make("h3", {}, "Average beat"), ...averages(pair, groups));
  } catch (error) {
    if (!stop.aborted) drawn.replaceChildren(make("h3", {}, "Average beat"), make("p", { class: "error" }, sentence(error.message)));
  }
}

function head(groups, first, last) {
  return make("thead", {}, make("tr", {}, first, ...groups.map((group) => make("th", { scope: "col" }, group.name)), last));
}

function medians(rows, groups) {
  const text = (one, step) => {
    if (!one) return ["–"];
    const [median, low, high] = [one.median, one.low, one.high].map((value) => signed(value, step < 1 ? 1 : 0));
    return [median, make("small", {}, `${low} to ${high}`)];
  };
  return make("section", {}, make("h3", {}, "Medians"), make("table", { class: "counts compared" }, head(groups, make("td", {})),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, make("th", { scope: "row" }, `${row.title}, ${row.unit}`), ...row.groups.map((one) => make("td", { title: `known of ${(one?.known ?? 0).toLocaleString()}` }, ...text(one, row.step))))))));
}

function shares(section, groups) {
  const known = section.rows[0].shares.map((one) => one.of);
  const text = (one) => (one.share === null ? ["–"] : [percent(one.share), make("small", {}, `${percent(one.low)}–${percent(one.high)}`)]);
  return make("section", {}, make("h3", {}, section.title), make("table", { class: "counts compared", "data-known": known.join(" ") },
    head(groups, make("td", {}), make("td", { class: "plotted" })),
    make("tbody", {}, ...section.rows.map((row) => make("tr", { "data-value": row.value }, make("th", { scope: "row" }, row.value),
      ...row.shares.map((one) => make("td", { title: `${one.count.toLocaleString()} of ${one.of.toLocaleString()}` }, ...text(one))), make("td", { class: "plotted" }, dots(row.shares)))))));
}

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

function dots(pair) {
  const x = (share) => 4 + (WIDE - 8) * share;
  const plot = svg("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, width: WIDE, height: TALL, class: "dots", "aria-hidden": "true" });
  for (const at of [0, 0.5, 1]) plot.append(svg("line", { class: "axis", x1: x(at), x2: x(at), y1: 0, y2: TALL }));
  pair.forEach((one, i) => {
    if (one.share === null) return;
    const y = 8 + 10 * i;
    plot.append(svg("line", { class: `reach group-${i}`, x1: x(one.low), x2: x(one.high), y1: y, y2: y }), svg("circle", { class: `dot group-${i}`, cx: x(one.share), cy: y, r: 3.5 }));
  });
  return plot;
}

// One small plot per lead, all at the same scale.
function averages(pair, groups) {
  const unit = pair[0].unit, same = pair.every((one) => one.unit === unit), names = [...new Set(pair.flatMap((one) => one.leads.map((lead) => lead.lead)))];
  if (!names.length) return [make("p", { class: "quiet" }, "No beats are found in these groups.")];
  if (!same) return [make("p", { class: "quiet" }, "The gain of one group is unknown, so amplitudes cannot be compared.")];
  const all = pair.flatMap((one) => one.leads), low = Math.min(...all.flatMap((lead) => lead.low)), high = Math.max(...all.flatMap((lead) => lead.high));
  const [width, height] = BEAT, samples = all[0].mean.length;
  const x = (i) => (i / (samples - 1)) * width, y = (value) => 8 + (height - 16) * (1 - (value - low) / (high - low || 1));
  const path = (values) => values.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const plots = names.map((name) => {
    const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "beat", role: "img", "aria-label": `Average beat in lead ${name}` });
    plot.append(svg("line", { class: "axis", x1: 0, x2: width, y1: y(0), y2: y(0) }));
    pair.forEach((one, i) => {
      const lead = one.leads.find((each) => each.lead === name);
      if (!lead) return;
      plot.append(svg("path", { class: `band group-${i}`, d: `${path(lead.high)}${lead.low.map((value, k) => `L${x(k).toFixed(1)} ${y(value).toFixed(1)}`).reverse().join("")}Z` }));
    });
    pair.forEach((one, i) => {
      const lead = one.leads.find((each) => each.lead === name);
      if (lead) plot.append(svg("path", { class: `line group-${i}`, d: path(lead.mean) }));
    });
    return make("figure", {}, make("figcaption", {}, name), plot);
  });
  const span = (pair[0].leads[0] ?? pair[1].leads[0]).mean.length / pair[0].rate;
  return [make("div", { class: "beats" }, ...plots), make("p", { class: "fine" },
    `${span.toFixed(1)} s around the QRS complex; all leads at the same scale, ${(high - low).toFixed(1)} ${unit} high. First recordings of ${groups.map((group, i) => `${pair[i].patients.toLocaleString()} of ${pair[i].of.toLocaleString()} patients (${group.name})`).join(" and ")}; each patient counts once. Bands: 95 % intervals of the mean.`)];
}
