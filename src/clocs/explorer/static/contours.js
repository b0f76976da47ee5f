// Lines around the densest part of some points: each encloses a share of them.

const SIDE = 96; // cells of the grid, per axis
const SHARES = [0.25, 0.5, 0.75, 0.9];
const EDGES = [[], [[3, 0]], [[0, 1]], [[3, 1]], [[1, 2]], [[3, 0], [1, 2]], [[0, 2]], [[3, 2]], [[2, 3]], [[2, 0]], [[0, 1], [2, 3]], [[2, 1]], [[1, 3]], [[1, 0]], [[0, 3]], []];

// places: (2n) floats; rows: those to draw around. Returns [{share, lines: Float32Array of x, y, x, y …}].
export function contours(places, rows) {
  if (rows.length < 5) return [];
  const low = [Infinity, Infinity], high = [-Infinity, -Infinity];
  for (const i of rows) for (const a of [0, 1]) {
    const v = places[2 * i + a];
    if (v < low[a]) low[a] = v;
    if (v > high[a]) high[a] = v;
  }
  const cell = Math.max(high[0] - low[0], high[1] - low[1], 1e-6) / (SIDE - 17); // with a margin of eight cells
  const start = low.map((v) => v - 8 * cell);
  let grid = new Float32Array(SIDE * SIDE);
  for (const i of rows) grid[Math.floor((places[2 * i + 1] - start[1]) / cell) * SIDE + Math.floor((places[2 * i] - start[0]) / cell)]++;
  const reach = rows.length > 2000 ? 1 : rows.length > 200 ? 2 : 3;
  for (let pass = 0; pass < 3; pass++) grid = blurred(blurred(grid, reach, 1, SIDE), reach, SIDE, 1); // nearly a Gaussian
  return SHARES.map((share) => ({ share, lines: traced(grid, levelOf(grid, share), start, cell) }));
}

// A running mean along rows (step 1, stride SIDE) or columns.
function blurred(grid, reach, step, stride) {
  const made = new Float32Array(grid.length), width = 2 * reach + 1;
  for (let line = 0; line < SIDE; line++) {
    let sum = 0;
    for (let k = -reach; k < SIDE; k++) {
      if (k + reach < SIDE) sum += grid[line * stride + (k + reach) * step];
      if (k - reach - 1 >= 0) sum -= grid[line * stride + (k - reach - 1) * step];
      if (k >= 0) made[line * stride + k * step] = sum / width;
    }
  }
  return made;
}

// The density above which this share of the points lies.
function levelOf(grid, share) {
  const sorted = grid.filter((v) => v > 0).sort(), all = sorted.reduce((a, b) => a + b, 0);
  let sum = 0;
  for (let k = sorted.length - 1; k >= 0; k--) if ((sum += sorted[k]) >= share * all) return sorted[k];
  return 0;
}

// Marching squares, with corners in the middle of the cells.
function traced(grid, level, [x0, y0], cell) {
  const lines = [];
  for (let row = 0; row + 1 < SIDE; row++) for (let column = 0; column + 1 < SIDE; column++) {
    const at = row * SIDE + column, v = [grid[at], grid[at + 1], grid[at + SIDE + 1], grid[at + SIDE]];
    const edges = EDGES[(v[0] > level) | ((v[1] > level) << 1) | ((v[2] > level) << 2) | ((v[3] > level) << 3)];
    for (const pair of edges) for (const edge of pair) {
      const [a, b] = [v[edge], v[(edge + 1) % 4]], t = (level - a) / (b - a);
      const [dx, dy] = [[t, 0], [1, t], [1 - t, 1], [0, 1 - t]][edge];
      lines.push(x0 + (column + 0.5 + dx) * cell, y0 + (row + 0.5 + dy) * cell);
    }
  }
  return Float32Array.from(lines);
}

// Where a name stands: among the most of a value's points. Returns [x, y] for each code, null where none.
export function centers(places, codeOf, values) {
  const n = places.length / 2, side = 24, low = [Infinity, Infinity], high = [-Infinity, -Infinity];
  for (let i = 0; i < n; i++) for (const a of [0, 1]) {
    low[a] = Math.min(low[a], places[2 * i + a]);
    high[a] = Math.max(high[a], places[2 * i + a]);
  }
  const cell = [0, 1].map((a) => Math.max(high[a] - low[a], 1e-6) / (side - 0.01));
  const cells = (i) => Math.floor((places[2 * i + 1] - low[1]) / cell[1]) * side + Math.floor((places[2 * i] - low[0]) / cell[0]);
  const counts = new Uint32Array(values * side * side);
  for (let i = 0; i < n; i++) if (codeOf(i) >= 0) counts[codeOf(i) * side * side + cells(i)]++;
  const best = new Int32Array(values).fill(-1), sums = Array.from({ length: values }, () => [0, 0, 0]);
  for (let k = 0; k < counts.length; k++) {
    const code = Math.floor(k / (side * side));
    if (counts[k] && (best[code] < 0 || counts[k] > counts[code * side * side + best[code]])) best[code] = k % (side * side);
  }
  for (let i = 0; i < n; i++) {
    const code = codeOf(i);
    if (code < 0 || best[code] !== cells(i)) continue;
    sums[code][0] += places[2 * i];
    sums[code][1] += places[2 * i + 1];
    sums[code][2]++;
  }
  return sums.map(([x, y, count]) => (count ? [x / count, y / count] : null));
}
