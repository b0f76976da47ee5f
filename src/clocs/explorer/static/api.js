// All requests to the server. Errors carry the server's own message.

import { traces, unpack } from "./packing.js";

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The explorer does not respond. Is it still running?");
  }
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw Object.assign(new Error(problem.message || `The explorer responded with status ${response.status}.`), { status: response.status, unitQuestion: problem.unit_question, rateQuestion: problem.rate_question });
  }
  return response;
}

const json = async (path, options) => (await request(path, options)).json();
const binary = async (path, options) => unpack(await (await request(path, options)).arrayBuffer());

export const session = () => json("/api/session");
export const map = () => binary("/api/map");
export const positions = (kind) => binary(`/api/positions${kind ? `?kind=${kind}` : ""}`);
export const positionsBy = (encoder) => binary(`/api/positions?encoder=${encoder}`);
export const projection = (encoder = 0) => json(`/api/projection?encoder=${encoder}`);
export const columns = () => binary("/api/columns");
export const distances = () => json("/api/distances");
export const names = () => json("/api/names");
export const patient = (code, options) => json(`/api/patients/${code}`, options);
export const neighbors = (code, options) => json(`/api/patients/${code}/neighbors`, options);
export const apart = (code, other, options) => json(`/api/patients/${code}/distances/${other}`, options);
export const csvOf = (code) => `/api/patients/${code}/neighbors.csv`;
export const uploaded = (code, options) => json(`/api/uploads/${code}`, options);

export function upload(files, rate, { unit, gain, confirmed }) {
  const body = new FormData();
  for (const file of files) body.append("files", file, file.name);
  if (rate) body.append("rate", rate);
  if (unit) body.append("unit", unit);
  if (gain) body.append("gain", gain);
  if (confirmed) body.append("confirmed", "true");
  return json("/api/uploads", { method: "POST", body });
}

// Groups of patients and saved cohorts

const post = (path, body, options) => request(path, { ...options, method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

export const cohorts = () => json("/api/cohorts");
export const cohort = (name, options) => json(`/api/cohorts/${encodeURIComponent(name)}`, options);
export const saveCohort = async (name, codes, replace) => (await post("/api/cohorts", { name, codes, replace })).json();
export const renameCohort = (name, other) => json(`/api/cohorts/${encodeURIComponent(name)}`, { method: "PATCH", headers: { "content-type": "application/json" }, body: JSON.stringify({ name: other }) });
export const removeCohort = (name) => request(`/api/cohorts/${encodeURIComponent(name)}`, { method: "DELETE" });
export const comparison = async ([first, second], options) => (await post("/api/groups/comparison", { first, second }, options)).json();
export const groupBeats = async (codes, options) => (await post("/api/groups/beats", { codes }, options)).json();
export const groupTable = async (codes) => (await post("/api/groups/table", { codes })).blob();

const placeOf = (source) => (source.upload ? `/api/uploads/${source.upload}` : `/api/patients/${source.patient}/recordings/${source.number}`);

export const predictions = (source, options) => json(`${placeOf(source)}/predictions`, options);

// Waves, intervals, axes and quality of the first minute.
export const measurements = (source, options) => json(`${placeOf(source)}/measurements`, options);

// Where the heart beats, and its average beat as a signal about the R peak, or null.
export async function beats(source, options) {
  const { facts, arrays } = await binary(`${placeOf(source)}/beats`, options);
  const { leads, rate, before, unit, ...rest } = facts;
  const samples = arrays.mean.shape[1], row = (values, i) => values.subarray(i * samples, (i + 1) * samples);
  const map = (values) => new Map(leads.map((lead, i) => [lead, row(values, i)]));
  const beat = samples && { leads, rate, unit, samples, start: -before, seconds: samples / rate, count: arrays.peaks.length, traces: map(arrays.mean), spread: map(arrays.spread) };
  return { ...rest, peaks: arrays.peaks, beat: beat || null };
}

// How much each moment of each lead speaks for a label, as a share of what speaks most.
export async function explanation(source, { model, label }, options) {
  const query = new URLSearchParams({ model });
  if (label) query.set("label", label);
  const { facts, arrays } = await binary(`${placeOf(source)}/explanation?${query}`, options);
  const [count, samples] = arrays.attribution.shape;
  const sizes = arrays.attribution.filter((v) => !Number.isNaN(v)).map(Math.abs).sort();
  const most = sizes[Math.floor(0.995 * (sizes.length - 1))] || 1;
  const shares = new Map();
  for (let i = 0; i < count; i++) shares.set(facts.leads[i], arrays.attribution.subarray(i * samples, (i + 1) * samples).map((v) => v / most));
  return { ...facts, samples, shares };
}

export const runs = () => json("/api/runs");
export const runLog = (name) => json(`/api/runs/log?${new URLSearchParams({ name })}`);
export const quality = () => json("/api/quality");

// A recording with its gaps, flat and clipped parts.
export const qualitySignal = (code) => traced(`/api/quality/${code}`);

// A signal: one trace per lead, in mV, or in adu if the gain is unknown.
export function signal(source, { lead, seconds = 60, abort } = {}) {
  const query = new URLSearchParams({ seconds });
  if (lead) query.set("lead", lead);
  return traced(`${placeOf(source)}/signal?${query}`, { signal: abort });
}

const traced = async (path, options) => traces(await binary(path, options));
