// The distributions of distances within and between patients, with marks on them.

import { make, svg } from "./dom.js";

// marks: [{distance, on}]
export function distancePlot(histogram, marks = [], widest = 420) {
  if (!histogram.inter.length) return make("p", { class: "quiet" }, "No reference distances are available.");
  const width = Math.min(widest, innerWidth - 40), height = 118, foot = 22, top = 8;
  const { edges } = histogram, reach = Math.max(edges.at(-1), ...marks.map((m) => m.distance * 1.03));
  const most = Math.max(...histogram.intra, ...histogram.inter);
  const x = (v) => (v / reach) * width, y = (d) => height - foot - (d / most) * (height - foot - top);
  const area = (density) => `M0 ${y(0)}` + density.map((d, i) => `L${x(edges[i]).toFixed(1)} ${y(d).toFixed(1)}L${x(edges[i + 1]).toFixed(1)} ${y(d).toFixed(1)}`).join("") + `L${x(edges.at(-1)).toFixed(1)} ${y(0)}`;
  const box = svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary(histogram) });
  for (const kind of ["inter", "intra"]) {
    if (!histogram[kind].length) continue;
    box.append(svg("path", { class: kind, d: area(histogram[kind]) }));
    const at = x(histogram[`${kind}_mean`]);
    box.append(svg("path", { class: `${kind} mean`, d: `M${at} ${y(0)}V${top}` }));
  }
  box.append(svg("path", { class: "axis", d: `M0 ${y(0)}H${width}` }));
  const step = reach > 1.2 ? 0.5 : reach > 0.5 ? 0.2 : 0.1;
  for (let v = 0; v < reach - step / 4; v += step) {
    const label = svg("text", { x: x(v), y: height - 7, "text-anchor": v ? "middle" : "start" });
    label.textContent = v.toFixed(1);
    box.append(label);
  }
  for (const { distance, on } of marks) {
    box.append(svg("path", { class: on ? "tick on" : "tick", d: `M${x(distance)} ${y(0)}v${on ? -34 : -15}` }));
  }
  return box;
}

export function distanceKey(histogram) {
  const key = (kind, text) => make("span", { class: `key ${kind}` }, make("i"), text);
  const mean = (kind) => (histogram[`${kind}_mean`] === null ? "" : ` (mean ${histogram[`${kind}_mean`].toFixed(2)})`);
  return make("div", { class: "keys-row" },
    histogram.intra.length > 0 && key("intra", `Same patient${mean("intra")}`),
    histogram.inter.length > 0 && key("inter", `Different patients${mean("inter")}`),
    histogram.separability !== null && make("span", {}, `Same patient closer in ${(100 * histogram.separability).toFixed(0)} % of comparisons`));
}

export function summary(histogram) {
  const parts = ["Distances between embeddings"];
  if (histogram.intra_mean !== null) parts.push(`same patient: mean ${histogram.intra_mean.toFixed(2)}`);
  if (histogram.inter_mean !== null) parts.push(`different patients: mean ${histogram.inter_mean.toFixed(2)}`);
  return parts.join(", ");
}

// "closer than 99.1 %": share of pairs of different patients that are further apart
export function closeness(share) {
  if (share === null) return "";
  const closer = 100 * (1 - share);
  return `closer than ${closer >= 99.95 ? "99.9" : closer.toFixed(closer > 99 ? 1 : 0)} %`;
}
