// The lineage of a detection, and NMS run again, in float32 with the layers' arithmetic.

/** Promise of the lineage with its arrays, and of its NMS as the layers ran it; of null without one. */
const readLineage = ofTrace(() => withArrays(trace.lineage).then((way) => way && prepared(way)));

async function withArrays(part) {
  if (!part) return null;
  const entries = Object.entries(part).map(async ([name, value]) => {
    if (value?.dtype) return [name, await read(value)];
    return [name, ["first", "last", "origins"].includes(name) ? await withArrays(value) : value];
  });
  return Object.fromEntries(await Promise.all(entries));
}

function prepared(way) {
  way.found = way.last ?? way.first;
  way.proposed = way.first && suppressed(way.first, way.first.threshold);
  return way;
}

/** kept: rows, the best first; by: each row's suppressor, -1 for none; shared: their overlap. */
function suppressed(nms, threshold) {
  const {groups, scores, eta, most} = nms;
  const count = groups.length;
  const by = new Int32Array(count).fill(-1);
  const shared = new Float32Array(count);
  const areas = Float32Array.from({length: count}, (_, i) => area(nms, i));
  const kept = [];
  let own = [];
  let bound = threshold;
  for (let i = 0; i < count; i++) {
    if (i && groups[i] !== groups[i - 1]) {
      own = [];
      bound = threshold;
    }
    if (most && own.length === most) continue;
    for (const k of own) {
      const part = overlap(nms, areas, k, i);
      if (part > f32(bound)) {
        by[i] = k;
        shared[i] = part;
        break;
      }
    }
    if (by[i] >= 0) continue;
    own.push(i);
    kept.push(i);
    if (eta < 1 && bound > 0.5) bound *= eta;
  }
  kept.sort((a, b) => scores[b] - scores[a] || a - b);
  return {kept: most ? kept.slice(0, most) : kept, by, shared};
}

function area({boxes, unit}, i) {
  const [width, height] = [0, 1].map((k) => f32(f32(boxes[4 * i + k + 2] - boxes[4 * i + k]) + unit));
  return !unit && (width < 0 || height < 0) ? 0 : f32(width * height);
}

function overlap({boxes, unit}, areas, k, i) {
  const a = 4 * k;
  const b = 4 * i;
  const width = f32(f32(Math.min(boxes[a + 2], boxes[b + 2]) - Math.max(boxes[a], boxes[b])) + unit);
  const height = f32(f32(Math.min(boxes[a + 3], boxes[b + 3]) - Math.max(boxes[a + 1], boxes[b + 1])) + unit);
  if (width <= 0 || height <= 0) return 0;
  const both = f32(width * height);
  return f32(both / f32(f32(areas[k] + areas[i]) - both));
}

/** A slider of an NMS's threshold, which calls ran(run). */
function nmsSlider(nms, ran) {
  const usual = Math.round(nms.threshold * 100);
  const field = el("input", {type: "range", min: 0, max: 100, value: usual, "aria-label": "NMS threshold, in percent"});
  const output = el("output", {});
  const draw = () => {
    const own = Number(field.value) === usual;
    const threshold = own ? nms.threshold : field.value / 100;
    const run = suppressed(nms, threshold);
    output.textContent = `NMS threshold ${number(threshold, 3)}${own ? ", the net's own" : ""}: keeps ${run.kept.length} of ${nms.groups.length}`;
    ran(run);
  };
  field.addEventListener("input", draw);
  draw();
  return el("label", {class: "slider nms-slider"}, field, output);
}

const rowBox = (boxes, i) => Array.from(boxes.subarray(4 * i, 4 * i + 4));

/** A box of an NMS or its origins in pixels of the picture. */
function pictured(way, nms, box) {
  const {width, height, scale, photo} = trace.image;
  if (!nms.unit) return box.map((v, k) => v * (k % 2 ? height : width));
  return box.map((v) => v / (nms === way.last ? photo : scale));
}

/** The detections of a run, as in the trace, with their rows. */
function detectionsOf(way, run) {
  const {width, height, photo} = trace.image;
  const sizes = [width, height].map((side) => Math.round(side * photo));
  return run.kept.map((row) => {
    const box = rowBox(way.found.boxes, row);
    const pixels = way.found.unit ? box : box.map((v, k) => clamp(v * sizes[k % 2], 0, sizes[k % 2] - 1));
    const group = way.found.groups[row];
    return {class: trace.classes[group], class_index: group, score: way.found.scores[row], box: pixels, row};
  });
}

const boxText = (box, digits = 4) => box.map((v) => number(v, digits)).join(", ");

/** The steps from a row back to its cell: {name, box, texts, source}; a box in pixels of the picture. */
function stepsBack(way, nms, run, row) {
  const steps = [];
  const source = nms.sources[row];
  const found = run.by[row] < 0 ? "detection" : "suppressed box";
  if (nms === way.last) {
    const texts = [`${trace.classes[nms.groups[row]]} ${number(nms.scores[row])}, x1, y1, x2, y2 ${boxText(rowBox(nms.boxes, row))} of the photo`];
    steps.push({name: found, box: pictured(way, nms, rowBox(nms.boxes, row)), texts: [...texts, fateText(way, nms, run, row)], source});
    if (!way.first) return [...steps, {name: `roi ${source}`, box: null, texts: classTexts(way, source), source}];
    const proposal = way.proposed.kept[source];
    const rest = stepsBack(way, way.first, way.proposed, proposal);
    rest[0].texts.push(...classTexts(way, source));
    return [...steps, ...rest];
  }
  const {anchors, deltas, decoded, places, maps} = way.origins;
  const roi = run.kept.indexOf(row);
  const ofRois = Boolean(way.last);
  const first = nms.groups.indexOf(nms.groups[row]);
  const rank = `number ${row - first} by score, ${number(nms.scores[row])}`;
  const label = ofRois ? "" : `${trace.classes[nms.groups[row]]}, `;
  steps.push({
    name: !ofRois ? found : roi < 0 ? "no roi" : `roi ${roi}`,
    box: pictured(way, nms, rowBox(nms.boxes, row)),
    texts: [`${label}${rank}; ${boxText(rowBox(nms.boxes, row))}${ofRois ? " of the net's input" : " of the image"}`, fateText(way, nms, run, row)],
    source,
  });
  steps.push({
    name: ofRois ? "proposal" : "decoded box",
    box: pictured(way, nms, rowBox(decoded, row)),
    texts: [`moved by ${boxText(rowBox(deltas, row))} (dx, dy, dw, dh): ${boxText(rowBox(decoded, row))}, before it is clipped`],
    source,
  });
  const [map, y, x, k] = rowBox(places, row);
  steps.push({
    name: ofRois ? `anchor ${k}` : `prior ${source}`,
    box: pictured(way, nms, rowBox(anchors, row)),
    texts: [`${boxText(rowBox(anchors, row))}${map < 0 ? "" : `, box ${k} of ${maps[map].boxes} of its cell`}`],
    source,
  });
  if (map < 0) return steps;
  const {layer, shape, size} = maps[map];
  const cell = [x, y, x + 1, y + 1].map((v, i) => v * size[i % 2]);
  const texts = [`row ${y}, column ${x} of the ${shape.join(" × ")} map of ${layer}`];
  return [...steps, {name: "cell", box: pictured(way, nms, cell), texts, source: `${y},${x}`}];
}

/** What NMS made of a row. */
function fateText(way, nms, run, row) {
  const by = run.by[row];
  if (by < 0) return run.kept.includes(row) ? "NMS keeps it" : `${nms.most} better boxes are kept: the limit`;
  const what = nms === way.first && way.last ? "roi" : "detection";
  return `suppressed by ${what} ${run.kept.indexOf(by)}, ${boxText(rowBox(nms.boxes, by))}: they overlap by ${number(run.shared[row])}`;
}

/** A roi's score for each class and, but for the background's, its move; the best first. */
function classTexts(way, roi) {
  const classes = way.scores.shape[1];
  const scores = way.scores.subarray(roi * classes, (roi + 1) * classes);
  const order = Array.from(scores.keys()).sort((a, b) => scores[b] - scores[a]);
  return order.slice(0, 5).map((k) => {
    const moved = k && way.moves ? `, moved by ${boxText(rowBox(way.moves, roi * classes + k))}` : "";
    return `${k ? trace.classes[k] ?? `class ${k}` : "background"} ${number(scores[k])}${moved}`;
  });
}

const MOST_SUPPRESSED = 20;

/** The way of a row in words; opened(row) is called for another row. Its `boxes` draws the way on a stage. */
function walkCard(way, nms, run, row, opened) {
  const steps = stepsBack(way, nms, run, row);
  const items = steps.map(({name, texts, source}, i) =>
    el("li", {"data-step": name, "data-source": source}, el("i", {class: `key walk-${i}`}), el("strong", {}, name), texts.map((text) => el("p", {class: "quiet"}, text))),
  );
  const dropped = Array.from(run.by.keys()).filter((i) => run.by[i] === row);
  const listed = dropped.slice(0, MOST_SUPPRESSED);
  const link = (i, text) => el("button", {type: "button", class: "link", "data-row": i, onclick: () => opened(i)}, text);
  const by = run.by[row];
  const card = el(
    "section",
    {class: "walk", tabindex: -1, "aria-label": "Where it comes from", "data-row": row},
    el("h3", {}, "Where it comes from"),
    by >= 0 ? link(by, "Show what suppressed it") : null,
    el("ol", {}, items),
    dropped.length ? el("h3", {}, `It suppressed ${dropped.length} ${dropped.length > 1 ? "boxes" : "box"}`) : null,
    el("ul", {class: "suppressed"}, listed.map((i) => el("li", {}, link(i, `score ${number(nms.scores[i], 4)}, overlap ${number(run.shared[i], 4)}`)))),
  );
  if (dropped.length > listed.length) card.append(quiet(`${dropped.length - listed.length} more are not shown`));
  const others = by >= 0 ? [by] : listed;
  card.boxes = [
    others.map((i) => box(...pictured(way, nms, rowBox(nms.boxes, i)), {class: "walk-other"})),
    steps.map((step, i) => step.box && box(...step.box, {class: `walk-box walk-${i}`, "data-step": step.name})).reverse(),
  ];
  return card;
}

/** The NMS of a Proposal: its rois on the photo at any threshold, and the way of one. */
function proposalsCard() {
  const view = stage("Rois on the image");
  const chooser = el("div", {});
  const walk = el("div", {});
  const card = el("section", {class: "card result proposals"}, el("h3", {}, "NMS of the proposals"), view.figure, saveButtons(() => view.figure, "the proposals"), chooser, walk);
  view.look(0, 0, trace.image.width, trace.image.height);
  photoCanvas().then((canvas) => view.paint(canvas, 0, 0, trace.image.width, trace.image.height));
  readLineage().then((way) => {
    const nms = way.first;
    const ran = (run) => {
      card.dataset.kept = run.kept.map((row) => nms.sources[row]).join(" ");
      const field = slider("roi", 0, Math.max(run.kept.length - 1, 0), 0, (k) => choose(run.kept[k]));
      const all = button("All rois", "Show all rois", () => choose(null));
      const choose = (row) => {
        const found = row === null ? null : walkCard(way, nms, run, row, choose);
        const roi = run.kept.indexOf(row);
        if (roi >= 0) field.set(roi);
        const rois = run.kept.map((i) => box(...pictured(way, nms, rowBox(nms.boxes, i)), {class: "walk-roi", onclick: () => choose(i)}));
        view.draw(found ? found.boxes : rois.reverse());
        walk.replaceChildren(...(found ? [found] : []));
      };
      chooser.replaceChildren(...(run.kept.length ? [field, all] : []));
      choose(null);
    };
    card.insertBefore(nmsSlider(nms, ran), view.figure);
  });
  return card;
}
