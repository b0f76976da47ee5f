// The tab of quality: what was quarantined or left out, why, and the parts that are to blame.

import * as api from "./api.js";
import { $, make, sentence, svg } from "./dom.js";

const STRIP = 74, COLUMNS = 900, PAGE = 50;
const KINDS = { gap: "no values", flat: "flat", clipped: "clipped" };

const WHY = {
  truncated: "the file breaks off",
  unreadable: "the file cannot be read",
  nan: "there are no values, or hardly any",
  "no rate": "its file does not say its sampling rate",
  implausible: "its rate, gain or amplitudes are those of no ECG",
  "exceeds limits": "it is larger than is read",
  flat: "every lead is constant",
  "no known lead": "it has none of the leads that are known",
  "too short": "it is shorter than a frame",
  "no label": "it has no label",
  "unknown label": "its label is none of the dataset's",
  "duplicate id": "another recording has the same ID",
  gap: "a stretch of a lead has no values; frames that it touches are left out",
  short: "it is shorter than a frame, so no embedding is made of it",
  copy: "another recording has the same samples; their patients are in the same part of the split",
};

const why = (reason) => WHY[reason] ?? "most readers would not accept it (quality under 50 %), for this reason in most of its bad leads";

export class QualityTab {
  constructor(app) { this.app = app; }

  async show(box) {
    this.box = box;
    box.replaceChildren(make("div", { class: "tab-head" }, make("h2", {}, "Quality")), make("p", { class: "quiet", role: "status" }, "Looking at the recordings …"));
    try {
      this.datasets ??= await api.quality();
    } catch (error) {
      box.replaceChildren(make("p", { class: "error", role: "alert" }, sentence(error.message)));
      return;
    }
    if ($("tab").dataset.tab !== "quality") return;
    box.replaceChildren(make("div", { class: "tab-head" }, make("h2", {}, "Quality"),
      make("p", { class: "quiet" }, "What was quarantined, left out or is not as it should be, and why.")), ...this.datasets.map((one) => this.#dataset(one)));
  }

  #dataset(one) {
    const list = make("ul", { class: "left-out", tabindex: 0, "aria-label": `Recordings of ${one.dataset}` });
    const drawing = make("div", { class: "drawing", "aria-live": "polite" });
    const most = Math.max(1, ...one.reasons.map((reason) => reason.count));
    const choose = (reason, button) => {
      for (const other of reasons.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
      this.#list(list, drawing, one.recordings_listed.filter((item) => item.reason === reason.reason), reason);
    };
    const reasons = make("div", { class: "reasons" }, ...one.reasons.flatMap((reason) => {
      const fill = make("i"), button = make("button", { type: "button", "aria-pressed": "false", "data-reason": reason.reason, onclick: () => choose(reason, button) }, reason.reason);
      fill.style.width = `${100 * reason.count / most}%`;
      return [button, make("span", { class: "track" }, fill), make("span", { class: "count" }, reason.count.toLocaleString("en"))];
    }));
    const section = make("section", { class: "panel quality", "aria-label": one.dataset },
      make("h3", {}, one.dataset),
      make("p", { class: "quiet" }, [`${one.recordings.toLocaleString("en")} recordings in the store`,
        one.without_recording ? `${one.without_recording.toLocaleString("en")} rows of label tables without a recording` : null].filter(Boolean).join(" · ")),
      one.reasons.length ? reasons : make("p", {}, "Every recording could be used."), list, drawing);
    const first = one.reasons.find((reason) => reason.in_store) ?? one.reasons[0];
    if (first) choose(first, reasons.querySelector(`[data-reason="${CSS.escape(first.reason)}"]`));
    return section;
  }

  #list(list, drawing, items, reason) {
    drawing.replaceChildren(make("p", {}, `${reason.reason}: ${why(reason.reason)}.`),
      reason.in_store ? "" : make("p", { class: "fine" }, "The store keeps no samples of quarantined recordings."));
    list.replaceChildren(...items.slice(0, PAGE).map((item) => make("li", {}, reason.in_store
      ? make("button", { type: "button", "data-code": item.code, "aria-pressed": "false", onclick: (event) => this.#draw(event.currentTarget, list, drawing, item) }, item.name)
      : make("span", { title: item.detail || why(item.reason) }, item.name))),
    items.length < reason.count || items.length > PAGE ? make("li", { class: "quiet" }, `and ${(reason.count - Math.min(PAGE, items.length)).toLocaleString("en")} more`) : "");
  }

  async #draw(button, list, drawing, item) {
    for (const other of list.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    try {
      const signal = await api.qualitySignal(item.code);
      const blamed = new Set(signal.parts.map((part) => part.lead));
      const leads = signal.leads.filter((lead) => blamed.has(lead));
      const shown = (leads.length ? leads : signal.leads).slice(0, 6), kinds = new Set(signal.parts.map((part) => part.kind));
      drawing.replaceChildren(
        make("div", { class: "tools" }, make("strong", {}, item.name), make("span", { class: "quiet" }, `${item.detail || why(item.reason)}; ${signal.seconds.toFixed(1)} s${shown.length < signal.leads.length ? `, ${shown.length} of ${signal.leads.length} leads` : ""}`),
          item.patient && make("button", { type: "button", onclick: () => this.app.choose(item.patient) }, "Open the patient")),
        make("p", { class: "keys-row" }, ...[...kinds].map((kind) => make("span", { class: `key part-${kind}` }, make("i"), KINDS[kind]))),
        strips(signal, shown, item, Math.max(300, drawing.clientWidth)));
      drawing.dataset.drawn = item.code;
    } catch (error) {
      drawing.replaceChildren(make("div", { class: "tools" }, make("strong", {}, item.name)), make("p", { class: "error", role: "alert" }, sentence(error.message)));
      drawing.dataset.drawn = item.code;
    }
  }
}

// One strip per lead: the trace, and behind it the parts.
function strips(signal, leads, item, wide) {
  const picture = svg("svg", { class: "strips", viewBox: `0 0 ${wide} ${STRIP * leads.length}`, role: "img", "aria-label": `${item.name}: ${leads.join(", ")}; ${signal.parts.length} marked parts` });
  leads.forEach((lead, i) => {
    const trace = signal.traces.get(lead), x = (seconds) => 40 + seconds / signal.seconds * (wide - 44);
    let low = Infinity, high = -Infinity;
    for (const value of trace) if (value < low) low = value; // NaN is neither
    for (const value of trace) if (value > high) high = value;
    const span = high - low || 1, y = (value) => STRIP * i + 8 + (high === low ? 0.5 : (high - value) / span) * (STRIP - 16);
    for (const part of signal.parts) if (part.lead === lead) picture.append(svg("rect", { class: `part part-${part.kind}`, x: x(part.start), width: Math.max(2, x(part.stop) - x(part.start)), y: STRIP * i + 2, height: STRIP - 4 }));
    picture.append(svg("text", { x: 4, y: STRIP * i + STRIP / 2 + 4 }, lead), svg("path", { class: "trace", d: path(trace, x, y, signal.seconds) }));
  });
  return picture;
}

function path(trace, x, y, seconds) {
  const step = Math.max(1, Math.floor(trace.length / COLUMNS)), parts = [];
  let down = false;
  for (let start = 0; start < trace.length; start += step) {
    let low = Infinity, high = -Infinity;
    for (let j = start; j < Math.min(start + step, trace.length); j++) { if (trace[j] < low) low = trace[j]; if (trace[j] > high) high = trace[j]; }
    if (low === Infinity) { down = false; continue; } // within a gap
    const at = x(start / trace.length * seconds).toFixed(1);
    parts.push(`${down ? "L" : "M"}${at},${y(high).toFixed(1)}L${at},${y(low).toFixed(1)}`);
    down = true;
  }
  return parts.join("");
}
