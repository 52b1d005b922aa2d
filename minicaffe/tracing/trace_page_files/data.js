// The trace: the document, its arrays, and lookups in it.

let trace;

/** Promise of the bytes of the page's arrays; those of an answer are with its references. */
const bytes = inflated(document.getElementById("arrays"));

const KINDS = {setup: "LayerSetUp", reshape: "Reshape", forward: "Forward", backward: "Backward"};

const ARRAY_TYPES = {f4: Float32Array, i4: Int32Array, u1: Uint8Array};

async function inflated(element) {
  const packed = fromBase64(element.textContent.trim());
  element.remove(); // frees the text, a third larger than the bytes
  if (!packed.length) return new ArrayBuffer(0);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const result = new Uint8Array(characters.length);
  for (let i = 0; i < result.length; i++) result[i] = characters.charCodeAt(i);
  return result;
}

/** The typed array of a reference {at, dtype, shape}, with its shape; null for null. */
async function read(ref) {
  if (!ref) return null;
  const count = product(ref.shape);
  const buffer = ref.bytes ?? (await bytes);
  const Type = ARRAY_TYPES[ref.dtype];
  // A copy, so that the array does not keep the whole buffer in memory.
  const data = new Type(buffer.slice(ref.at, ref.at + count * Type.BYTES_PER_ELEMENT));
  data.shape = ref.shape;
  return data;
}

const f32 = Math.fround;

/** A function that returns what make makes of the current trace, which is made once. */
function ofTrace(make) {
  const made = new WeakMap();
  return () => {
    if (!made.has(trace)) made.set(trace, make());
    return made.get(trace);
  };
}

const clamp = (v, low, high) => Math.min(Math.max(v, low), high);

const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

/** A number with up to `digits` significant digits. */
function number(v, digits = 5) {
  if (v === null || v === undefined) return "–";
  if (Number.isNaN(v)) return "NaN";
  if (!Number.isFinite(v)) return v > 0 ? "+infinity" : "−infinity";
  if (v === 0) return "0";
  const size = Math.abs(v);
  const text =
    size >= 1e6 || size < 1e-4 ? v.toExponential(digits - 1).replace(/\.?0+e/, "e") : String(Number(v.toPrecision(digits)));
  return text.replace("-", "−");
}

function byteText(count) {
  if (count < 1e3) return `${count}\u00a0B`;
  const [unit, size] = count < 1e6 ? ["kB", 1e3] : count < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  return `${number(count / size, 3)}\u00a0${unit}`;
}

const timeText = (ms) =>
  ms === null || ms === undefined ? "not timed" : ms >= 1000 ? `${number(ms / 1000, 3)}\u00a0s` : `${number(ms, 3)}\u00a0ms`;

const shapeText = (shape) => (shape.length ? shape.join(" × ") : "one number");

/** For each layer: its steps by kind. */
let stepsOf;

/** For each layer: the shapes of its tops and bottoms by blob name, if the trace has them. */
let shapesOf;

/** Let the references in a part of a document be to these bytes. */
function referTo(buffer, part) {
  if (!part || typeof part !== "object") return;
  if ("at" in part && part.dtype) part.bytes = buffer;
  else for (const inner of Object.values(part)) referTo(buffer, inner);
}

/** Show this trace from now on: the views are made after it. */
function take(found) {
  trace = found;
  stepsOf = trace.layers.map(() => ({}));
  trace.steps.forEach((step, i) => {
    stepsOf[step.layer][step.kind] = i;
  });
  const latest = {};
  shapesOf = trace.layers.map((layer, i) => {
    const own = stepsOf[i];
    const shapes = trace.steps[own.forward ?? own.reshape]?.shapes ?? [];
    const bottoms = Object.fromEntries(layer.bottoms.map((name) => [name, latest[name]]));
    const tops = Object.fromEntries(layer.tops.map((name, t) => [name, shapes[t]]));
    Object.assign(latest, tops);
    return {top: tops, bottom: bottoms};
  });
}

/** The step to show for a layer: of the given kind, else of the nearest kind before it. */
function stepFor(layer, kind) {
  const order = ["backward", "forward", "reshape", "setup"];
  const found = order
    .slice(order.indexOf(kind))
    .concat(order)
    .find((k) => stepsOf[layer][k] !== undefined);
  return found ? stepsOf[layer][found] : null;
}

take(JSON.parse(document.getElementById("trace").textContent));
