// The tab of trainings: curves of a run, one line per seed, read on while it trains.

import * as api from "./api.js";
import { make, sentence, svg } from "./dom.js";

const EVERY = 2000; // ms between two looks at the log
const WIDE = 460, TALL = 200, LEFT = 46, RIGHT = 8, TOP = 8, BELOW = 24;
const COLORS = ["c0", "c1", "c2", "c3", "c4", "c5", "c6"];
const SKIPPED = ["epoch", "seed", "perturb", "seconds", "instances_per_second"];

export class TrainingTab {
  async show(box) {
    this.stopped = false;
    this.state = make("p", { id: "run-state", class: "quiet", role: "status" });
    this.charts = make("div", { class: "charts" });
    this.choice = make("select", { id: "run", "aria-label": "Run", hidden: true, onchange: () => this.#open(this.choice.value) });
    box.replaceChildren(
      make("div", { class: "tab-head" }, make("h2", {}, "Training"), this.choice, this.state),
      make("p", { class: "key-line fine" }, "Solid: validation. Dashed: training. One color per seed."), this.charts);
    try {
      await this.#list();
      const first = this.runs.find((run) => run.state === "training") ?? this.runs[0];
      if (first) await this.#open(first.name);
      else this.state.textContent = "No training has begun here yet.";
      this.#follow();
    } catch (error) {
      this.state.textContent = sentence(error.message);
    }
  }

  leave() {
    this.stopped = true;
    clearTimeout(this.timer);
  }

  async #list() {
    this.runs = await api.runs();
    const known = [...this.choice.options].map((one) => one.value);
    if (known.join("\n") === this.runs.map((run) => run.name).join("\n")) return;
    const chosen = this.choice.value;
    this.choice.replaceChildren(...this.runs.map((run) => make("option", { value: run.name }, run.name)));
    if (this.runs.some((run) => run.name === chosen)) this.choice.value = chosen;
    this.choice.hidden = this.runs.length < 2;
  }

  async #open(name) {
    this.choice.value = name;
    Object.assign(this, { name, lines: [], logged: -1 });
    await this.#read();
  }

  async #read() {
    const { name } = this, { logged } = this.runs.find((run) => run.name === name) ?? this;
    if (logged !== this.logged) {
      const lines = await api.runLog(name);
      if (this.stopped || name !== this.name) return;
      Object.assign(this, { lines, logged });
    }
    this.#draw();
  }

  #follow() {
    if (this.stopped) return;
    this.timer = setTimeout(async () => {
      try {
        await this.#list();
        if (!this.name && this.runs.length) await this.#open(this.runs[0].name);
        else if (this.name) await this.#read();
      } catch { /* the server may be back at the next look */ }
      this.#follow();
    }, EVERY);
  }

  #draw() {
    const run = this.runs.find((one) => one.name === this.name) ?? {}, { lines } = this;
    const last = lines.reduce((most, line) => Math.max(most, line.epoch), 0);
    const seconds = lines.findLast((line) => line.seconds)?.seconds;
    this.state.textContent = [
      run.method, { training: "training now", finished: "finished", stopped: "stopped before its end" }[run.state],
      last ? `epoch ${last}${run.epochs ? ` of at most ${run.epochs}` : ""}` : "no epoch yet",
      run.seeds && `${run.seeds} ${run.seeds === 1 ? "seed" : "seeds"}`, seconds && `${seconds.toPrecision(2)} s per epoch`,
    ].filter(Boolean).join(" · ");
    const names = [...new Set(lines.flatMap((line) => Object.keys(line)))].filter((name) => !SKIPPED.includes(name) && name !== "train_loss" && name !== "validation_loss");
    const charts = last ? [["Loss", ["validation_loss", "train_loss"]], ...names.map((name) => [words(name), [name]])] : [];
    this.charts.replaceChildren(...charts.map(([title, metrics]) => chart(title, metrics, lines)));
    this.charts.dataset.epoch = last;
  }
}

const words = (name) => { const text = name.replaceAll("_", " "); return text.charAt(0).toUpperCase() + text.slice(1); };

function chart(title, metrics, lines) {
  const members = [...new Set(lines.map((line) => `${line.perturb ?? ""} ${line.seed}`))];
  const curves = metrics.flatMap((metric) => members.map((member, i) => ({
    metric, color: COLORS[i % COLORS.length],
    points: lines.filter((line) => `${line.perturb ?? ""} ${line.seed}` === member && Number.isFinite(line[metric])).map((line) => [line.epoch, line[metric]]),
  }))).filter((curve) => curve.points.length);
  const all = curves.flatMap((curve) => curve.points);
  let low = Infinity, high = -Infinity, last = 2;
  for (const [epoch, value] of all) { low = Math.min(low, value); high = Math.max(high, value); last = Math.max(last, epoch); }
  if (low === high) { low -= 0.5; high += 0.5; }
  const x = (epoch) => LEFT + (epoch - 1) / (last - 1) * (WIDE - LEFT - RIGHT);
  const y = (value) => TOP + (high - value) / (high - low) * (TALL - TOP - BELOW);
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, class: "plot", role: "img", "aria-label": summary(title, curves, last) });
  for (const value of [low, (low + high) / 2, high]) {
    picture.append(svg("line", { class: "axis", x1: LEFT, x2: WIDE - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, String(Number(value.toPrecision(3)))));
  }
  for (const epoch of [1, Math.round((1 + last) / 2), last]) picture.append(svg("text", { x: x(epoch), y: TALL - 6, "text-anchor": epoch === 1 ? "start" : epoch === last ? "end" : "middle" }, epoch === last ? `epoch ${last}` : String(epoch)));
  for (const { metric, color, points } of curves) {
    picture.append(points.length > 1
      ? svg("polyline", { class: metric === "train_loss" ? "curve train" : "curve", "data-color": color, points: points.map(([e, v]) => `${x(e).toFixed(1)},${y(v).toFixed(1)}`).join(" ") })
      : svg("circle", { class: "dot", "data-color": color, cx: x(points[0][0]), cy: y(points[0][1]), r: 2.5 }));
  }
  return make("figure", { class: "panel chart" }, make("figcaption", {}, title), picture);
}

function summary(title, curves, last) {
  const ends = curves.filter((curve) => curve.metric !== "train_loss").map((curve) => curve.points.at(-1)[1]);
  const mean = ends.reduce((sum, value) => sum + value, 0) / (ends.length || 1);
  return `${title} over ${last} epochs, ${ends.length} ${ends.length === 1 ? "line" : "lines"}; at the end ${Number(mean.toPrecision(3))} on average`;
}
