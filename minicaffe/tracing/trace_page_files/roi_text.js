// The arithmetic of one output number of an ROI layer, as text.

const pair = (values, digits) => `(${[...values].map((v) => number(v, digits)).join(", ")})`;

/** Paragraphs {title, lines} for output channel c, bin (ph, pw) of roi r. */
function arithmetic(roi, arrays, {r, c, ph, pw}, bin, backward) {
  const corners = row(arrays.rois, r).subarray(1);
  const scaled = corners.map((v) => v * Math.fround(roi.spatial_scale)); // float32, as in the layer; corners is a Float32Array
  const [binH, binW] = row(arrays.size, r);
  const parts = [
    {
      title: "The roi",
      lines: [
        `roi ${r} in image pixels: ${pair(corners, 7)}, of item ${arrays.rois[5 * r]} of the batch`,
        `times spatial_scale ${number(roi.spatial_scale)}: ${pair(scaled, 7)} on the map`,
        roundingLine(roi, arrays, r, scaled),
        `a bin is ${number(binH, 7)} high and ${number(binW, 7)} wide`,
      ],
    },
  ];
  parts.push({title: `Bin (${ph}, ${pw})`, lines: [...channelLines(roi, c, ph, pw, bin), ...boundLines(roi, arrays, bin)]});
  if (!bin.stored)
    parts.push({title: "Values", lines: ["this map is not in the page (see the notes); use minicaffe explain"]});
  else parts.push({title: takesMaximum(roi) ? "The maximum" : "The mean", lines: valueLines(roi, bin)});
  const at = outputIndex(roi, arrays, {r, c, ph, pw});
  if (arrays.output && at !== null)
    parts.push({title: "Result", lines: [`the layer's output [${r}, ${c}, ${ph}, ${pw}] = ${number(arrays.output[at], 8)}`]});
  if (backward && arrays.dy && at !== null) parts.push({title: "Backward", lines: gradientLines(roi, bin, arrays.dy[at])});
  return parts;
}

/** The index of a number in output and dy; null if its channel is not stored. */
function outputIndex(roi, arrays, {r, c, ph, pw}) {
  const kept = (arrays.output ?? arrays.dy)?.shape[1] ?? 0;
  return c < kept ? ((r * kept + c) * roi.pooled[0] + ph) * roi.pooled[1] + pw : null;
}

/** How each kind of layer gets from a roi to what it divides into bins: what it rounds, what it takes as the end. */
const WHOLE_CELLS = "Each bin takes whole cells: its start is rounded down, its end up.";
const MIDDLES =
  "A sample at k reads cell k in its middle, at k + 0.5 here: the lines lie half a cell right of the frame, and below it.";
const CONVENTIONS = {
  max_bins: `Rounds the corners to cells of the map, and takes the cell of the end too. ${WHOLE_CELLS}`,
  max_samples: `Rounds nothing. The end is one cell after x2 and y2. ${MIDDLES}`,
  mean_samples: `Rounds nothing. The end is x2 and y2. ${MIDDLES} The setting aligned takes this half cell off.`,
  psroi_bins: `Rounds the corners to pixels of the image, and takes the pixel of the end too. ${WHOLE_CELLS}`,
  psroi_samples: `Rounds nothing, and takes the pixel of the end too. ${MIDDLES}`,
};

/** The frame of a roi and what is divided, as numbers of the map. */
function areaLine({plain, used}) {
  const span = (box, i) => `${number(box[i], 4)} to ${number(box[i + 2], 4)}`;
  const side = (box) => `columns ${span(box, 0)}, rows ${span(box, 1)}`;
  return `The roi: ${side(plain)}. Divided: ${side(used)}.`;
}

/** How the scaled corners are rounded. */
function roundingLine(roi, arrays, r, scaled) {
  const start = row(arrays.start, r);
  if (roi.kind === "max_bins") {
    const [x1, y1, x2, y2] = row(arrays.rounded, r);
    const [width, height] = [x2 - x1 + 1, y2 - y1 + 1].map((size) => Math.max(size, 1));
    const size = `both ends inclusive: ${width} wide and ${height} high (at least 1)`;
    return `rounded, halves away from zero: ${pair([x1, y1, x2, y2])}, ${size}`;
  }
  if (roi.kind === "psroi_bins") {
    const rounded = pair(row(arrays.rounded, r), 7);
    return `corners rounded before scaling, 1 added to the end: ${rounded} on the map; at least 0.1 wide and high`;
  }
  if (roi.kind === "psroi_samples")
    return `not rounded; 1 added to the end before scaling: ${pair(start, 7)}; at least 0.1 wide and high`;
  if (roi.kind === "max_samples") return "not rounded; the size is end − start + 1 on the map";
  if (start[0] === scaled[0]) return "not rounded; at least 1 wide and high";
  return `not rounded; minus 0.5 (aligned): ${pair(start, 7)}`;
}

function channelLines(roi, c, ph, pw, bin) {
  if (!isPositionSensitive(roi)) return [`channel ${c} of the map`];
  const g = roi.group;
  return [`output ${c} of bin (${ph}, ${pw}) reads score map (${c} × ${g} + ${ph}) × ${g} + ${pw} = ${bin.channel}`];
}

function boundLines(roi, arrays, bin) {
  if (!readsBins(roi)) {
    if (!bin.items.length) return ["no samples: the bin is empty and its value is 0"];
    const places = (axis) => [...new Set(bin.items.map((item) => item[axis]))].map((v) => number(v)).join(", ");
    return [`samples in rows ${places("h")}`, `samples in columns ${places("w")}`];
  }
  const {h, w, rawH, rawW} = bin.bounds;
  const [, height, width] = arrays.map.shape;
  const line = (name, raw, clipped, size) => {
    const same = raw[0] === clipped[0] && raw[1] === clipped[1];
    const cut = same ? "" : `, clipped to the map's 0 to ${size}: ${clipped[0]} to ${clipped[1]}`;
    return `${name}: floor ${raw[0]} to ceil ${raw[1]}${cut} (end exclusive)`;
  };
  return [
    line("rows", rawH, h, height),
    line("columns", rawW, w, width),
    bin.items.length ? `${bin.items.length} cells` : "empty: its value is 0",
  ];
}

const MOST_LINES = 24;

function valueLines(roi, bin) {
  const items = bin.items.slice(0, MOST_LINES);
  const lines = items.map(
    (item, i) =>
      (readsBins(roi) ? `[${item.h}, ${item.w}] = ${number(item.value, 7)}` : sampleLine(item)) +
      (i === bin.best ? "   ← the maximum" : ""),
  );
  if (bin.items.length > MOST_LINES) {
    lines.push(`… and ${bin.items.length - MOST_LINES} more`);
    const best = bin.items[bin.best];
    if (bin.best >= MOST_LINES) lines.push(`the maximum: [${number(best.h)}, ${number(best.w)}] = ${number(best.value, 7)}`);
  }
  if (!bin.items.length) return ["nothing to read: 0"];
  if (takesMaximum(roi)) return lines;
  return [...lines, `sum ${number(bin.value * bin.divisor, 7)} / ${number(bin.divisor)} = ${number(bin.value, 7)}`];
}

function sampleLine(item) {
  const terms = item.cells.map((cell) =>
    cell.h < 0 || cell.w < 0
      ? "outside the map: 0"
      : `${number(cell.weight, 4)} × ${number(cell.value, 5)} [${cell.h}, ${cell.w}]`,
  );
  return `at (${number(item.h)}, ${number(item.w)}): ${terms.join(" + ")} = ${number(item.value, 7)}`;
}

function gradientLines(roi, bin, dy) {
  const cells = gradientFactors(roi, bin);
  if (!cells.length) return [`dy = ${number(dy, 7)} has no effect: the bin read nothing`];
  const lines = cells
    .slice(0, MOST_LINES)
    .map(({h, w, factor}) => `dx[${h}, ${w}] += ${number(factor, 5)} × dy = ${number(factor * dy, 7)}`);
  return [
    `dy = ${number(dy, 7)}`,
    ...lines,
    cells.length > MOST_LINES ? `… and ${cells.length - MOST_LINES} more cells` : null,
  ].filter(Boolean);
}
