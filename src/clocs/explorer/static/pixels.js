// Draws points without a graphics card: blends small stamps of each shape into an image.

import { GRAY } from "./fields.js";

const STEPS = 4; // stamps per shape and axis, for positions between pixels
const LITTLE = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

export class PixelPainter {
  constructor(canvas) {
    this.kind = "pixels";
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
  }

  // places: (2n) floats; looks: (n) 32-bit numbers of red, green, blue, and 0 for hidden, 1 + shape, or GRAY.
  fill(places, looks) {
    this.places = places;
    this.kinds = new Uint8Array(looks.length);
    this.inks = new Uint32Array(looks.length);
    this.gray = false;
    for (let k = 0; k < looks.length; k++) {
      const word = looks[k], kind = LITTLE ? word >>> 24 : word & 255;
      this.kinds[k] = kind;
      this.inks[k] = LITTLE ? word | 0xff000000 : word | 255;
      this.gray ||= kind === GRAY;
    }
  }

  // The first `count` points. size: of a point, in canvas pixels.
  draw(count, { center, zoom, width, height, size, opacity }) {
    const { canvas, pen } = this, margin = Math.ceil(size) + 2; // a stamp never exceeds the image
    const across = canvas.width + 2 * margin, down = canvas.height + 2 * margin;
    if (this.image?.width !== across || this.image.height !== down) {
      this.image = new ImageData(across, down);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(0);
    if (count) this.#cut(size, opacity, across);
    if (this.gray) this.#stamp(count, true, { center, zoom, width, margin, across, down });
    this.#stamp(count, false, { center, zoom, width, margin, across, down });
    this.#divide();
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.putImageData(this.image, -margin, -margin);
  }

  // The gray points, or all others.
  #stamp(count, gray, { center, zoom, width, margin, across, down }) {
    const { canvas, pixels, places, kinds, inks } = this;
    const ratio = canvas.width / width, unit = zoom * ratio;
    const left = margin + canvas.width / 2 - center[0] * unit, top = margin + canvas.height / 2 + center[1] * unit;
    const low = margin / 2, right = across - low, bottom = down - low;
    for (let k = 0; k < count; k++) {
      if (!kinds[k] || (kinds[k] === GRAY) !== gray) continue;
      const kind = gray ? 1 : kinds[k];
      const x = left + places[2 * k] * unit, y = top - places[2 * k + 1] * unit;
      if (!(x >= low && y >= low && x < right && y < bottom)) continue;
      const column = Math.floor(x), row = Math.floor(y);
      const stamp = this.stamps[((kind - 1) * STEPS + Math.floor((y - row) * STEPS)) * STEPS + Math.floor((x - column) * STEPS)];
      const { offsets, weights } = stamp, at = row * across + column;
      const even = inks[k] & 0xff00ff, odd = (inks[k] >>> 8) & 0xff00ff;
      for (let p = 0; p < offsets.length; p++) { // two of the four channels at once
        const place = at + offsets[p], weight = weights[p], old = pixels[place];
        const a = old & 0xff00ff, b = (old >>> 8) & 0xff00ff;
        pixels[place] = ((a + (Math.imul(even - a, weight) >>> 8)) & 0xff00ff) | (((b + (Math.imul(odd - b, weight) >>> 8)) & 0xff00ff) << 8);
      }
    }
  }

  // Blending yields colors multiplied by opacity; an image needs them unmultiplied.
  #divide() {
    const { data } = this.image;
    for (let i = 3; i < data.length; i += 4) {
      const alpha = data[i];
      if (alpha === 0 || alpha === 255) continue;
      const factor = 255 / alpha;
      data[i - 3] *= factor;
      data[i - 2] *= factor;
      data[i - 1] *= factor;
    }
  }

  // For each shape and position between pixels: the pixels covered, and their weights out of 256.
  #cut(size, opacity, across) {
    const key = `${size} ${opacity} ${across}`;
    if (this.key === key) return;
    this.key = key;
    this.stamps = [];
    const reach = Math.ceil(size / 2) + 1, edge = 1.3 / size;
    for (let shape = 0; shape < 5; shape++) for (let down = 0; down < STEPS; down++) for (let right = 0; right < STEPS; right++) {
      const offsets = [], weights = [];
      for (let row = -reach; row <= reach; row++) for (let column = -reach; column <= reach; column++) {
        const x = (2 * (column + 0.5 - (right + 0.5) / STEPS)) / size, y = (2 * (row + 0.5 - (down + 0.5) / STEPS)) / size;
        const t = Math.min(1, Math.max(0, (radius(shape, x, y) - 1 + edge) / edge)), cover = 1 - t * t * (3 - 2 * t);
        if (cover <= 0.02 || Math.max(Math.abs(x), Math.abs(y)) > 1) continue;
        offsets.push(row * across + column);
        weights.push(Math.round(256 * cover * opacity));
      }
      this.stamps.push({ offsets: Int32Array.from(offsets), weights: Int32Array.from(weights) });
    }
  }
}

// Below 1 inside a shape; the same as in gl.js.
function radius(shape, x, y) {
  const r = Math.hypot(x, y);
  if (shape === 1) return (Math.abs(x) + Math.abs(y)) * 0.95;
  if (shape === 2) return Math.max(Math.abs(x), Math.abs(y)) * 1.2;
  if (shape === 3) return Math.max(y * 1.25, Math.abs(x) * 1.15 - y * 0.6 + 0.05);
  return shape === 4 ? Math.max(r, 1.55 - r * 1.4) : r;
}
