// Reads the format of clocs.web.packing: facts (JSON) and arrays, as views of one buffer.

const KINDS = {
  uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array,
  float32: Float32Array, float64: Float64Array,
};

export function unpack(buffer) {
  const size = 4 + new DataView(buffer).getUint32(0, true);
  const { arrays, ...facts } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size - 4)));
  const found = {};
  for (const { name, dtype, shape, offset } of arrays) {
    const count = shape.reduce((a, b) => a * b, 1);
    found[name] = new KINDS[dtype](buffer, size + offset, count);
    found[name].shape = shape;
  }
  return { facts, arrays: found };
}

// A signal that was packed: one trace per lead, in mV, or in adu if the gain is unknown; NaN in a gap.
export function traces({ facts, arrays }) {
  const [count, samples] = arrays.digital.shape;
  const found = new Map();
  for (let i = 0; i < count; i++) {
    const digital = arrays.digital.subarray(i * samples, (i + 1) * samples);
    const values = new Float32Array(samples);
    const gain = facts.gain[i], zero = facts.baseline[i];
    for (let j = 0; j < samples; j++) values[j] = digital[j] === -32768 ? NaN : (digital[j] - zero) / gain;
    found.set(facts.leads[i], values);
  }
  return { ...facts, samples, traces: found };
}
