// Draws points with WebGL2, on machines with a graphics card.

import { GRAY } from "./fields.js";

const VERTEX = `#version 300 es
in vec2 place; in vec3 rgb; in float kind;
uniform vec2 center, scale; uniform float size; uniform bool gray;
out vec3 ink; flat out int shape;
void main() {
  bool other = (kind > ${GRAY - 0.5}) != gray;
  ink = rgb; shape = gray ? 0 : int(kind) - 1;
  gl_Position = kind < 0.5 || other ? vec4(2.0, 2.0, 2.0, 1.0) : vec4((place - center) * scale, 0.0, 1.0);
  gl_PointSize = size;
}`;
// Shapes: 0 disc, 1 diamond, 2 square, 3 triangle, 4 ring; the same in pixels.js.
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
const OPTIONS = { antialias: false, alpha: true, preserveDrawingBuffer: false, failIfMajorPerformanceCaveat: true };
const SOFTWARE = /swiftshader|llvmpipe|softpipe|software|basic render/i;

export class GlPainter {
  static on(canvas) {
    const gl = canvas.getContext("webgl2", OPTIONS);
    return gl && new GlPainter(gl);
  }

  // Whether there is a graphics card: without one `pixels.js` is faster.
  static get pays() {
    const gl = document.createElement("canvas").getContext("webgl2", OPTIONS);
    const info = gl?.getExtension("WEBGL_debug_renderer_info");
    const name = info ? gl.getParameter(info.UNMASKED_RENDERER_WEBGL) : "";
    gl?.getExtension("WEBGL_lose_context")?.loseContext();
    return Boolean(gl) && !SOFTWARE.test(name);
  }

  constructor(gl) {
    this.kind = "webgl2";
    this.gl = gl;
    this.#start();
    gl.canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
  }

  #start() {
    const { gl } = this, program = gl.createProgram();
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
    this.uniform = Object.fromEntries(["center", "scale", "size", "opacity", "gray"].map((n) => [n, gl.getUniformLocation(program, n)]));
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

  // After a lost context.
  restart(places, looks) {
    this.#start();
    if (places) this.fill(places, looks);
  }

  // places: (2n) floats; looks: (n) 32-bit numbers of red, green, blue, and 0 for hidden, 1 + shape, or GRAY.
  fill(places, looks) {
    const { gl } = this;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers.place);
    gl.bufferData(gl.ARRAY_BUFFER, places, gl.STATIC_DRAW);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers.look);
    gl.bufferData(gl.ARRAY_BUFFER, looks, gl.DYNAMIC_DRAW);
    this.gray = new Uint8Array(looks.buffer).some((byte, at) => at % 4 === 3 && byte === GRAY);
  }

  // The first `count` points. size: of a point, in canvas pixels.
  draw(count, { center, zoom, width, height, size, opacity }) {
    const { gl, uniform } = this;
    gl.viewport(0, 0, gl.canvas.width, gl.canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    if (!count) return;
    gl.uniform2f(uniform.center, ...center);
    gl.uniform2f(uniform.scale, (2 * zoom) / width, (2 * zoom) / height);
    gl.uniform1f(uniform.size, size);
    gl.uniform1f(uniform.opacity, opacity);
    for (const gray of this.gray ? [1, 0] : [0]) { // gray ones below all others
      gl.uniform1i(uniform.gray, gray);
      gl.drawArrays(gl.POINTS, 0, count);
    }
  }
}
