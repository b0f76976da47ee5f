// A scatter plot: the visible part of the plane, and finding points; a painter draws them.

import { GRAY } from "./fields.js";
import { GlPainter } from "./gl.js";
import { PixelPainter } from "./pixels.js";

export class Scatter {
  // kind: "webgl2" or "pixels"; by default the faster of the two on this machine.
  constructor(canvas, kind) {
    this.canvas = canvas;
    this.count = 0;
    this.center = [0, 0];
    this.zoom = 1; // CSS pixels per unit
    this.home = 1;
    this.width = this.height = 1;
    this.share = 1; // share of the points drawn while the map moves
    kind ??= GlPainter.pays ? "webgl2" : "pixels";
    this.painter = (kind === "webgl2" && GlPainter.on(canvas)) || new PixelPainter(canvas);
    canvas.addEventListener("webglcontextrestored", () => { this.painter.restart(...(this.shuffled ?? [])); this.draw(); });
  }

  get kind() { return this.painter.kind; }

  // places: (2n) floats.
  setPlaces(places) {
    this.places = places;
    this.count = places.length / 2;
    this.order = shuffled(this.count);
    this.grid = null;
    this.#fill();
  }

  // look: (4n) bytes: red, green, blue, and 0 for hidden, 1 + shape, or GRAY for those below all others.
  setLook(look) {
    this.look = look;
    this.#fill();
  }

  #stands(row) { // whether a point is neither hidden nor gray
    const kind = this.look[4 * row + 3];
    return kind > 0 && kind < GRAY;
  }

  #fill() {
    if (!this.places || !this.look) return;
    const { order } = this, n = this.count;
    // In random order, so that any first part of the points is a fair sample of all.
    const looks = new Uint32Array(n), paints = new Uint32Array(this.look.slice().buffer); // four bytes as one number
    if (this.spread !== this.places) {
      this.spread = this.places;
      this.shuffled = [new Float32Array(2 * n)];
      for (let k = 0; k < n; k++) {
        this.shuffled[0][2 * k] = this.places[2 * order[k]];
        this.shuffled[0][2 * k + 1] = this.places[2 * order[k] + 1];
      }
    }
    for (let k = 0; k < n; k++) looks[k] = paints[order[k]];
    this.shuffled[1] = looks;
    this.painter.fill(this.shuffled[0], looks);
  }

  resize(width, height) {
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
  }

  // Shows all points, except for a few extreme outliers.
  fit() {
    if (!this.count) return;
    const step = Math.max(1, Math.floor(this.count / 20000));
    const ends = [0, 1].map((axis) => {
      const values = new Float32Array(Math.ceil(this.count / step));
      for (let k = 0; k < values.length; k++) values[k] = this.places[2 * k * step + axis];
      values.sort();
      const at = (q) => values[Math.round(q * (values.length - 1))];
      const [low, high] = this.count > 2000 ? [at(0.001), at(0.999)] : [at(0), at(1)];
      return [low, Math.max(high, low + 1e-6)];
    });
    const margin = 22;
    const room = [Math.max(20, this.width - 2 * margin), Math.max(20, this.height - 2 * margin)];
    this.center = ends.map(([low, high]) => (low + high) / 2);
    this.zoom = this.home = Math.min(room[0] / (ends[0][1] - ends[0][0]), room[1] / (ends[1][1] - ends[1][0]));
  }

  toScreen(x, y) {
    return [this.width / 2 + (x - this.center[0]) * this.zoom, this.height / 2 - (y - this.center[1]) * this.zoom];
  }

  toPlane(x, y) {
    return [this.center[0] + (x - this.width / 2) / this.zoom, this.center[1] - (y - this.height / 2) / this.zoom];
  }

  pan(dx, dy) {
    this.center = [this.center[0] - dx / this.zoom, this.center[1] + dy / this.zoom];
  }

  zoomAt(x, y, factor) {
    const before = this.toPlane(x, y);
    this.zoom = Math.min(Math.max(this.zoom * factor, this.home / 4), this.home * 400);
    const after = this.toPlane(x, y);
    this.center = [this.center[0] + before[0] - after[0], this.center[1] + before[1] - after[1]];
  }

  get size() { // of a point, in CSS pixels
    const base = Math.min(9, Math.max(2.8, 24 * (this.count + 1) ** -0.18));
    return base * Math.min(2.5, Math.max(0.8, (this.zoom / this.home) ** 0.3));
  }

  get opacity() { return this.count > 30000 ? 0.72 : 0.88; }

  // share: of the points; below 1 while a slow machine moves the map.
  draw(share = 1) {
    const { center, zoom, width, height, opacity } = this, size = this.size * (window.devicePixelRatio || 1);
    this.painter.draw(this.look ? Math.ceil(this.count * share) : 0, { center, zoom, width, height, size, opacity });
  }

  // Points by grid cell, in one array: cell c contains order[starts[c] … starts[c + 1]]. Made when
  // first needed, so that the map appears sooner.
  #index() {
    if (this.grid) return this.grid;
    const n = this.count, side = Math.max(1, Math.min(512, Math.round(Math.sqrt(n / 3))));
    const low = [Infinity, Infinity], high = [-Infinity, -Infinity];
    for (let i = 0; i < n; i++) for (const a of [0, 1]) {
      const v = this.places[2 * i + a];
      if (v < low[a]) low[a] = v;
      if (v > high[a]) high[a] = v;
    }
    const cell = [0, 1].map((a) => Math.max((high[a] - low[a]) / side, 1e-9));
    const at = (v, a) => Math.min(side - 1, Math.max(0, Math.floor((v - low[a]) / cell[a])));
    const starts = new Uint32Array(side * side + 1), cells = new Uint32Array(n);
    for (let i = 0; i < n; i++) {
      cells[i] = at(this.places[2 * i + 1], 1) * side + at(this.places[2 * i], 0);
      starts[cells[i] + 1]++;
    }
    for (let c = 0; c < side * side; c++) starts[c + 1] += starts[c];
    const fill = starts.slice(), order = new Uint32Array(n);
    for (let i = 0; i < n; i++) order[fill[cells[i]]++] = i;
    return (this.grid = { side, at, starts, order });
  }

  // The nearest visible point within `reach` pixels on the screen, or -1.
  pick(x, y, reach = 12) {
    if (!this.count || !this.look) return -1;
    const { side, at, starts, order } = this.#index();
    const [px, py] = this.toPlane(x, y), r = reach / this.zoom;
    let best = -1, least = r * r;
    for (let row = at(py - r, 1); row <= at(py + r, 1); row++) {
      const first = starts[row * side + at(px - r, 0)], last = starts[row * side + at(px + r, 0) + 1];
      for (let k = first; k < last; k++) {
        const i = order[k];
        if (!this.#stands(i)) continue;
        const d = (this.places[2 * i] - px) ** 2 + (this.places[2 * i + 1] - py) ** 2;
        if (d <= least) { least = d; best = i; }
      }
    }
    return best;
  }

  // All points inside a polygon [[x, y], …], also gray ones; `places` may be of another projection.
  inside(polygon, places = this.places) {
    const found = [];
    const xs = polygon.map((p) => p[0]), ys = polygon.map((p) => p[1]);
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    for (let i = 0; i < this.count; i++) {
      const x = places[2 * i], y = places[2 * i + 1];
      if (x < x0 || x > x1 || y < y0 || y > y1) continue;
      let within = false;
      for (let a = 0, b = polygon.length - 1; a < polygon.length; b = a++) {
        const [ax, ay] = polygon[a], [bx, by] = polygon[b];
        if ((ay > y) !== (by > y) && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) within = !within;
      }
      if (within) found.push(i);
    }
    return found;
  }
}

// 0 … n − 1 in a fixed random order.
function shuffled(n) {
  const order = new Uint32Array(n);
  for (let i = 0; i < n; i++) order[i] = i;
  let state = 1;
  for (let i = n - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = Math.floor((state / 2 ** 32) * (i + 1));
    const one = order[i];
    order[i] = order[j];
    order[j] = one;
  }
  return order;
}
