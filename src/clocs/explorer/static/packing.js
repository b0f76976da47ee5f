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
