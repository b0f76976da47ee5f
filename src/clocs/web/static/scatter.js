// Points on a plane: WebGL2 (a plain canvas where there is none), picking by a grid.
// Knows nothing about patients: places, colours and shapes in, pixels and nearest points out.

const VERTEX = `#version 300 es
in vec2 place; in vec3 rgb; in float kind;
uniform vec2 centre, scale; uniform float size;
out vec3 ink; flat out int shape;
void main() {
  ink = rgb; shape = int(kind) - 1;
  gl_Position = kind < 0.5 ? vec4(2.0, 2.0, 2.0, 1.0) : vec4((place - centre) * scale, 0.0, 1.0);
  gl_PointSize = size;
}`;
// Shapes: 0 disc, 1 diamond, 2 square, 3 triangle, 4 ring.
const FRAGMENT = `#version 300 es
precision highp float;
in vec3 ink; flat in int shape; uniform float size, opacity; out vec4 pixel;
void main() {
  vec2 p = gl_PointCoord * 2.0 - 1.0;
  float r = length(p);
  if (shape == 1) r = (abs(p.x) + abs(p.y)) * 0.95;
  else if (shape == 2) r = max(abs(p.x), abs(p.y)) * 1.2;
  else if (shape == 3) r = max(p.y * 1.25, abs(p.x) * 1.15 - p.y * 0.6 + 0.05);
  else if (shape == 4) r = max(r, 1.55 - r * 1.4);
  float edge = 1.3 / size;
  float cover = 1.0 - smoothstep(1.0 - edge, 1.0, r);
  if (cover <= 0.02) discard;
  pixel = vec4(ink, 1.0) * cover * opacity;
}`;

export class Scatter {
  constructor(canvas) {
    this.canvas = canvas;
    this.count = 0;
    this.centre = [0, 0];
    this.zoom = 1; // pixels (of CSS) a unit
    this.home = 1;
    this.width = this.height = 1;
    this.frames = 0;
    this.share = 1; // of the points that a frame shows while the map moves
    const gl = canvas.getContext("webgl2", { antialias: false, alpha: true, preserveDrawingBuffer: false });
    if (gl) this.#start(gl);
    else this.flat = canvas.getContext("2d");
    canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => { this.#start(gl); this.#fill(); this.draw(); });
  }

  get kind() { return this.gl ? "webgl2" : "canvas"; }

  #start(gl) {
    const program = gl.createProgram();
    for (const [type, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(type);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    gl.useProgram(program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.gl = gl;
    this.uniform = Object.fromEntries(["centre", "scale", "size", "opacity"].map((n) => [n, gl.getUniformLocation(program, n)]));
    this.buffers = { place: gl.createBuffer(), look: gl.createBuffer() };
    const attribute = (name, buffer, size, type, normal, stride, offset) => {
      const at = gl.getAttribLocation(program, name);
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, size, type, normal, stride, offset);
    };
    attribute("place", this.buffers.place, 2, gl.FLOAT, false, 0, 0);
    attribute("rgb", this.buffers.look, 3, gl.UNSIGNED_BYTE, true, 4, 0);
    attribute("kind", this.buffers.look, 1, gl.UNSIGNED_BYTE, false, 4, 3);
  }

  // places: (2n) floats.
  setPlaces(places) {
    this.places = places;
    this.count = places.length / 2;
    this.order = shuffled(this.count);
    this.#index();
    this.#fill();
  }

  // look: (4n) bytes: red, green, blue, and 0 for hidden or 1 + shape.
  setLook(look) {
    this.look = look;
    this.#fill();
  }

  #fill() {
    if (!this.gl || !this.places || !this.look) return;
    const { gl, order } = this, n = this.count;
    // In an order of chance: any first part of the points is a fair sample of all.
    const places = new Float32Array(2 * n), looks = new Uint32Array(n);
    const paints = new Uint32Array(this.look.slice().buffer); // four bytes, one word
    for (let k = 0; k < n; k++) {
      const i = order[k];
      places[2 * k] = this.places[2 * i];
      places[2 * k + 1] = this.places[2 * i + 1];
      looks[k] = paints[i];
    }
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers.place);
    gl.bufferData(gl.ARRAY_BUFFER, places, gl.STATIC_DRAW);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers.look);
    gl.bufferData(gl.ARRAY_BUFFER, looks, gl.DYNAMIC_DRAW);
  }

  resize(width, height) {
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
  }

  // Everybody in view, but for the outermost few where they lie far out.
  fit() {
    if (!this.count) return;
    const step = Math.max(1, Math.floor(this.count / 20000));
    const ends = [0, 1].map((axis) => {
      const values = [];
      for (let i = 0; i < this.count; i += step) values.push(this.places[2 * i + axis]);
      values.sort((a, b) => a - b);
      const at = (q) => values[Math.round(q * (values.length - 1))];
      const [low, high] = this.count > 2000 ? [at(0.001), at(0.999)] : [at(0), at(1)];
      return [low, Math.max(high, low + 1e-6)];
    });
    const margin = 22;
    const room = [Math.max(20, this.width - 2 * margin), Math.max(20, this.height - 2 * margin)];
    this.centre = ends.map(([low, high]) => (low + high) / 2);
    this.zoom = this.home = Math.min(room[0] / (ends[0][1] - ends[0][0]), room[1] / (ends[1][1] - ends[1][0]));
  }

  toScreen(x, y) {
    return [this.width / 2 + (x - this.centre[0]) * this.zoom, this.height / 2 - (y - this.centre[1]) * this.zoom];
  }

  toPlane(x, y) {
    return [this.centre[0] + (x - this.width / 2) / this.zoom, this.centre[1] - (y - this.height / 2) / this.zoom];
  }

  pan(dx, dy) {
    this.centre = [this.centre[0] - dx / this.zoom, this.centre[1] + dy / this.zoom];
  }

  zoomAt(x, y, factor) {
    const before = this.toPlane(x, y);
    this.zoom = Math.min(Math.max(this.zoom * factor, this.home / 4), this.home * 400);
    const after = this.toPlane(x, y);
    this.centre = [this.centre[0] + before[0] - after[0], this.centre[1] + before[1] - after[1]];
  }

  get size() { // of a point, in pixels of CSS
    const base = Math.min(9, Math.max(2.8, 24 * (this.count + 1) ** -0.18));
    return base * Math.min(2.5, Math.max(0.8, (this.zoom / this.home) ** 0.3));
  }

  get opacity() { return this.count > 30000 ? 0.72 : 0.88; }

  // share: how many of the points, 1 for all; fewer while a slow machine moves the map.
  draw(share = 1) {
    this.frames++;
    const ratio = window.devicePixelRatio || 1;
    if (!this.gl) { this.#drawFlat(ratio, share); return; }
    const { gl, uniform } = this;
    gl.viewport(0, 0, this.canvas.width, this.canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    if (!this.count || !this.look) return;
    gl.uniform2f(uniform.centre, ...this.centre);
    gl.uniform2f(uniform.scale, (2 * this.zoom) / this.width, (2 * this.zoom) / this.height);
    gl.uniform1f(uniform.size, this.size * ratio);
    gl.uniform1f(uniform.opacity, this.opacity);
    gl.drawArrays(gl.POINTS, 0, Math.ceil(this.count * share));
  }

  #drawFlat(ratio, share) {
    const pen = this.flat;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    if (!this.count || !this.look) return;
    pen.globalAlpha = this.opacity;
    const { size, look } = this;
    let last = -1;
    for (let k = 0; k < this.count * share; k++) {
      const i = this.order[k];
      if (!look[4 * i + 3]) continue;
      const [x, y] = this.toScreen(this.places[2 * i], this.places[2 * i + 1]);
      if (x < -size || y < -size || x > this.width + size || y > this.height + size) continue;
      const ink = (look[4 * i] << 16) | (look[4 * i + 1] << 8) | look[4 * i + 2];
      if (ink !== last) pen.fillStyle = `#${(last = ink).toString(16).padStart(6, "0")}`;
      pen.fillRect(x - size / 2.3, y - size / 2.3, size / 1.15, size / 1.15);
    }
    pen.globalAlpha = 1;
  }

  // Points by cells of a grid, in one array: cell c holds order[starts[c] … starts[c + 1]].
  #index() {
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
    this.grid = { side, at, starts, order };
  }

  // The nearest point that is shown, within `reach` pixels of the screen; or -1.
  pick(x, y, reach = 12) {
    if (!this.count || !this.look) return -1;
    const { side, at, starts, order } = this.grid;
    const [px, py] = this.toPlane(x, y), r = reach / this.zoom;
    let best = -1, least = r * r;
    for (let row = at(py - r, 1); row <= at(py + r, 1); row++) {
      const first = starts[row * side + at(px - r, 0)], last = starts[row * side + at(px + r, 0) + 1];
      for (let k = first; k < last; k++) {
        const i = order[k];
        if (!this.look[4 * i + 3]) continue;
        const d = (this.places[2 * i] - px) ** 2 + (this.places[2 * i + 1] - py) ** 2;
        if (d <= least) { least = d; best = i; }
      }
    }
    return best;
  }

  // All points that are shown inside a polygon of the plane [[x, y], …].
  inside(polygon) {
    const found = [];
    const xs = polygon.map((p) => p[0]), ys = polygon.map((p) => p[1]);
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    for (let i = 0; i < this.count; i++) {
      const x = this.places[2 * i], y = this.places[2 * i + 1];
      if (x < x0 || x > x1 || y < y0 || y > y1 || !this.look[4 * i + 3]) continue;
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

// 0 … n − 1 in an order of chance that is the same every time.
function shuffled(n) {
  const order = Uint32Array.from({ length: n }, (_, i) => i);
  let state = 1;
  for (let i = n - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = Math.floor((state / 2 ** 32) * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}
