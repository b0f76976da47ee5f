// The map: one point per patient; hover, click, lasso, zoom and pan; marks above the points.

import { Scatter } from "./scatter.js";
import { color } from "./dom.js";
import { drawSymbol } from "./fields.js";
import { drawContours, drawNames } from "./overlay.js";

const STEP = 60; // pixels that an arrow key moves
const LATE = 34; // ms: longer frames are noticeable
const REST = 160; // ms without a movement
const LEAST = 3000; // points drawn in every frame

export class PatientMap extends EventTarget {
  constructor(box, points, marks, tip) {
    super();
    this.box = box;
    this.tip = tip;
    this.scatter = new Scatter(points);
    this.marks = marks;
    this.pen = marks.getContext("2d");
    this.selected = -1;
    this.near = [];
    this.visitor = null; // position of an upload
    this.hovered = -1;
    this.polygon = null;
    this.contours = []; // as contours.js makes them
    this.names = []; // [{text, at: [x, y], paint, shape}]
    this.lassoing = false;
    this.touched = false; // whether the user has moved the map
    this.pointers = new Map();
    this.peer = null; // a map of the same patients in other places: who is selected or pointed at here is marked there
    this.absent = null; // (n) 1 for patients that have no place here
    this.describe = () => [];
    new ResizeObserver(() => this.#resize()).observe(box);
    this.#resize();
    this.#listen();
  }

  setPlaces(places) {
    this.scatter.setPlaces(places);
    if (!this.touched) this.scatter.fit();
    this.redraw();
  }

  setLook(look) {
    this.scatter.setLook(this.absent ? look.map((v, k) => (k % 4 === 3 && this.absent[k >> 2] ? 0 : v)) : look);
    this.redraw();
  }

  mark({ selected = this.selected, near = this.near, visitor = this.visitor, polygon = this.polygon }) {
    this.show({ selected, near, visitor, polygon });
    this.peer?.show({ selected, near });
  }

  // Marks that are the peer's, too.
  show(marks) {
    Object.assign(this, marks);
    this.redraw();
  }

  setOverlay({ contours, names }) {
    Object.assign(this, { contours, names });
    this.redraw();
  }

  fit() {
    this.touched = false;
    this.scatter.fit();
    this.redraw();
  }

  zoom(factor) {
    this.scatter.zoomAt(this.scatter.width / 2, this.scatter.height / 2, factor);
    this.move();
  }

  lasso(on) {
    this.lassoing = on;
    this.box.classList.toggle("lasso", on);
  }

  setLasso(on) {
    this.lasso(on);
    this.dispatchEvent(new CustomEvent("mode", { detail: on }));
  }

  // One frame for many changes.
  redraw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.scatter.draw();
      this.#drawMarks(this.pen);
    });
  }

  // Resolves when pending changes are on the screen.
  drawn() {
    return new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  }

  // The same while the map moves: if frames are late, draw a sample of the points small enough to
  // keep up, and all of them once the map is at rest.
  move() {
    this.touched = true;
    clearTimeout(this.resting);
    if (this.waiting) return;
    this.waiting = requestAnimationFrame((now) => {
      this.waiting = 0;
      const { scatter } = this, gap = this.last ? now - this.last : LATE;
      this.last = now;
      if (gap > LATE) scatter.share = Math.max(LEAST / Math.max(scatter.count, LEAST), scatter.share * Math.max(0.3, LATE / gap));
      else if (gap < 0.6 * LATE) scatter.share = Math.min(1, scatter.share * 1.15);
      scatter.draw(scatter.share);
      this.#drawMarks(this.pen);
      // Longer than a late frame, or the whole map would be drawn in between.
      clearTimeout(this.resting);
      this.resting = setTimeout(() => { this.last = 0; this.redraw(); }, Math.max(REST, 3 * gap));
    });
  }

  // Keeps a patient in view who was not selected on the map.
  reveal(row) {
    const { scatter } = this;
    const [x, y] = scatter.toScreen(scatter.places[2 * row], scatter.places[2 * row + 1]);
    if (x > 20 && y > 20 && x < scatter.width - 20 && y < scatter.height - 20) return;
    scatter.center = [scatter.places[2 * row], scatter.places[2 * row + 1]];
    this.touched = true;
    this.redraw();
  }

  // The map as an image with its legend: [{text, paint, shape}, …].
  async picture(title, legend) {
    const { scatter } = this, ratio = window.devicePixelRatio || 1;
    const side = 190, canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
    canvas.width = (scatter.width + side) * ratio;
    canvas.height = Math.max(scatter.height + 40, 60 + 20 * legend.length) * ratio;
    pen.fillStyle = color("panel");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    scatter.draw(); // a drawing buffer is cleared after its frame
    pen.drawImage(scatter.canvas, 0, 40 * ratio);
    pen.drawImage(this.marks, 0, 40 * ratio);
    pen.scale(ratio, ratio);
    pen.fillStyle = color("ink");
    pen.font = "600 14px system-ui, sans-serif";
    pen.fillText(title, 16, 26, scatter.width + side - 32);
    pen.font = "12px system-ui, sans-serif";
    legend.forEach(({ text, paint, shape }, i) => {
      drawSymbol(pen, shape, paint, scatter.width + 12, 56 + 20 * i, 5.5);
      pen.fillStyle = color("ink");
      pen.fillText(text, scatter.width + 24, 60 + 20 * i, side - 30);
    });
    return new Promise((done) => { canvas.toBlob(done, "image/png"); });
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.box;
    this.scatter.resize(width, height);
    const ratio = window.devicePixelRatio || 1;
    this.marks.width = Math.round(width * ratio);
    this.marks.height = Math.round(height * ratio);
    if (!this.touched) this.scatter.fit();
    this.redraw();
  }

  #drawMarks(pen) {
    const ratio = window.devicePixelRatio || 1, { scatter } = this;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, scatter.width, scatter.height);
    if (!scatter.count) return;
    const at = (row) => scatter.toScreen(scatter.places[2 * row], scatter.places[2 * row + 1]);
    const ink = color("mark"), ground = color("panel"), r = scatter.size / 2;
    const ring = (x, y, radius, width) => {
      for (const [paint, more] of [[ground, 2.5], [ink, 0]]) {
        pen.strokeStyle = paint;
        pen.lineWidth = width + more;
        pen.beginPath();
        pen.arc(x, y, radius, 0, 7);
        pen.stroke();
      }
    };
    drawContours(pen, scatter, this.contours, ground, color("ink"));
    drawNames(pen, scatter, this.names, ground, color("ink"));
    const from = this.visitor ? scatter.toScreen(...this.visitor) : this.selected >= 0 ? at(this.selected) : null;
    const near = this.near.filter((row) => !this.absent?.[row]), there = (row) => row >= 0 && !this.absent?.[row];
    if (from && near.length) {
      pen.strokeStyle = ink;
      pen.globalAlpha = 0.35;
      pen.lineWidth = 1;
      pen.beginPath();
      for (const row of near) { pen.moveTo(...from); pen.lineTo(...at(row)); }
      pen.stroke();
      pen.globalAlpha = 1;
    }
    for (const row of near) ring(...at(row), r + 2.5, 1.3);
    if (there(this.selected)) { ring(...at(this.selected), r + 4, 2.4); }
    if (there(this.hovered)) ring(...at(this.hovered), r + 3, 1.8);
    if (this.visitor) star(pen, ...from, 10, color("warn"), ground);
    if (this.polygon?.length > 1) {
      pen.beginPath();
      this.polygon.forEach(([x, y], i) => pen[i ? "lineTo" : "moveTo"](...scatter.toScreen(x, y)));
      pen.closePath();
      pen.fillStyle = color("accent");
      pen.globalAlpha = 0.1;
      pen.fill();
      pen.globalAlpha = 1;
      pen.strokeStyle = color("accent");
      pen.lineWidth = 1.5;
      pen.stroke();
    }
  }

  #listen() {
    const { box, scatter } = this;
    const where = (event) => {
      const frame = box.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    };
    let drag = null;
    box.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      box.setPointerCapture(event.pointerId);
      const at = where(event);
      this.pointers.set(event.pointerId, at);
      const drawing = this.lassoing || event.shiftKey;
      drag = { from: at, last: at, moved: false, drawing, path: drawing ? [scatter.toPlane(...at)] : null };
    });
    box.addEventListener("pointermove", (event) => {
      const at = where(event);
      if (!this.pointers.has(event.pointerId) || !drag) { this.#hover(at); return; }
      const old = this.pointers.get(event.pointerId);
      this.pointers.set(event.pointerId, at);
      if (this.pointers.size === 2) { this.#pinch(event.pointerId, old, at); drag.moved = true; return; }
      if (Math.hypot(at[0] - drag.from[0], at[1] - drag.from[1]) > 4) drag.moved = true;
      if (!drag.moved) return;
      this.#hideTip();
      if (drag.drawing) {
        drag.path.push(scatter.toPlane(...at));
        this.polygon = drag.path;
        this.#drawMarks(this.pen); // the points stay as they are
      } else {
        scatter.pan(at[0] - drag.last[0], at[1] - drag.last[1]);
        this.move();
      }
      drag.last = at;
    });
    const end = (event) => {
      if (!this.pointers.delete(event.pointerId) || !drag || this.pointers.size) return;
      const { moved, drawing, path } = drag;
      drag = null;
      if (event.type === "pointercancel") { this.redraw(); return; }
      if (drawing && moved && path.length > 3) this.dispatchEvent(new CustomEvent("group", { detail: thinned(path) }));
      else if (!moved) {
        const row = scatter.pick(...where(event), event.pointerType === "touch" ? 22 : 12);
        this.dispatchEvent(new CustomEvent("choose", { detail: row }));
      }
    };
    box.addEventListener("pointerup", end);
    box.addEventListener("pointercancel", end);
    box.addEventListener("pointerleave", () => this.#hideTip());
    box.addEventListener("wheel", (event) => {
      event.preventDefault();
      const step = event.deltaMode === 1 ? 16 : 1;
      scatter.zoomAt(...where(event), Math.exp(-Math.max(-120, Math.min(120, event.deltaY * step)) * 0.0022));
      this.move();
    }, { passive: false });
    box.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] }[event.key];
      if (move) { scatter.pan(...move); this.move(); }
      else if (event.key === "+" || event.key === "=") this.zoom(1.4);
      else if (event.key === "-") this.zoom(1 / 1.4);
      else if (event.key === "0") this.fit();
      else return;
      event.preventDefault();
    });
  }

  #pinch(id, old, now) {
    const [other] = [...this.pointers].filter(([key]) => key !== id).map(([, at]) => at);
    const length = (a) => Math.hypot(a[0] - other[0], a[1] - other[1]);
    this.scatter.zoomAt((now[0] + other[0]) / 2, (now[1] + other[1]) / 2, length(now) / Math.max(1, length(old)));
    this.scatter.pan((now[0] - old[0]) / 2, (now[1] - old[1]) / 2);
    this.move();
  }

  #hover(at) {
    const row = this.scatter.pick(...at);
    if (row !== this.hovered) {
      this.hovered = row;
      this.box.classList.toggle("over", row >= 0);
      this.#drawMarks(this.pen);
      this.peer?.show({ hovered: row });
      if (row >= 0) {
        const [name, ...lines] = this.describe(row);
        const bold = document.createElement("b");
        bold.textContent = name;
        this.tip.replaceChildren(bold, ...lines.flatMap((line, i) => (i ? [document.createElement("br"), line] : [line])));
      }
    }
    this.tip.hidden = row < 0;
    if (row < 0) return;
    const { width, height } = this.scatter;
    this.tip.style.left = `${Math.min(at[0] + 14, width - this.tip.offsetWidth - 6)}px`;
    this.tip.style.top = `${at[1] + this.tip.offsetHeight + 24 > height ? at[1] - this.tip.offsetHeight - 10 : at[1] + 16}px`;
  }

  #hideTip() {
    this.tip.hidden = true;
    if (this.hovered < 0) return;
    this.hovered = -1;
    this.#drawMarks(this.pen);
    this.peer?.show({ hovered: -1 });
  }
}

// A lasso short enough for a URL: every k-th corner.
function thinned(path, most = 48) {
  const step = Math.ceil(path.length / most);
  return path.filter((_, i) => i % step === 0).map((p) => p.map((v) => Number(v.toPrecision(5))));
}

function star(pen, x, y, r, paint, ground) {
  pen.beginPath();
  for (let i = 0; i < 10; i++) {
    const angle = (i * Math.PI) / 5 - Math.PI / 2, reach = i % 2 ? r * 0.45 : r;
    pen[i ? "lineTo" : "moveTo"](x + reach * Math.cos(angle), y + reach * Math.sin(angle));
  }
  pen.closePath();
  pen.fillStyle = paint;
  pen.strokeStyle = ground;
  pen.lineWidth = 2;
  pen.stroke();
  pen.fill();
}
