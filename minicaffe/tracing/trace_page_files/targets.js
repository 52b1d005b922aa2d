// The targets of a training step on the photo: the true boxes, the anchors by their labels, the sampled rois by their classes.

/** For each state of an anchor, in trace.py's order: its text, and the name of its colour. */
const ANCHOR_STATES = [
  ["label 0: background", "negative"],
  ["label 1: an object", "positive"],
  ["ignored: it would be 1, but was not drawn", "ignored"],
  ["ignored: it would be 0, but was not drawn", "ignored"],
  ["ignored: its overlap is between the limits", "ignored"],
  ["ignored: it leaves the image", "ignored"],
];
const MOVES = ["dx", "dy", "dw", "dh"];

/** What is shown of each layer's targets, by layer name: kept between steps. */
const targetPlaces = {};

/** Show an anchor in the card of the panel, if there is one: (row, column, number). */
let showAnchor = null;

function targetPlace(layer) {
  const show = layer.targets.kind === "anchors" ? "drawn" : "all";
  return (targetPlaces[layer.name] ??= {show, y: null, x: null, a: 0, isChosen: false});
}

/** The part of the page's address that says what is shown of a layer's targets. */
function targetWords(layer) {
  const {show, y, x, a, isChosen} = targetPlace(layer);
  if (layer.targets.kind === "given") return {};
  return {show, ...(isChosen ? {roi: lastRoi.r} : {}), ...(y === null ? {} : {anchor: `${y},${x},${a}`})};
}

/** Let an address choose what is shown of a layer's targets. */
function takeTargetWords(layer, words) {
  delete targetPlaces[layer.name];
  const place = targetPlace(layer);
  place.show = words.get("show") ?? place.show;
  place.isChosen = layer.targets.kind === "rois" && words.has("roi");
  const at = (words.get("anchor") ?? "").split(",").map(Number);
  const [height, width] = layer.targets.shape ?? [];
  const count = layer.targets.base?.shape[0];
  if (at.length !== 3 || !at.every((v, i) => Number.isInteger(v) && v >= 0 && v < [height, width, count][i])) return;
  Object.assign(place, {y: at[0], x: at[1], a: at[2]});
}

const CARDS = {given: givenCard, anchors: anchorsCard, rois: sampledCard};

/** The card of a layer's targets; filled when the arrays are there. */
function targetsCard(layer) {
  const card = el("section", {class: "card targets", "aria-label": `Targets of ${layer.name}`});
  withArrays(layer.targets).then((targets) => CARDS[targets.kind](card, layer, targets));
  return card;
}

/** A stage with the photo of the step, or its area. size: height and width of the net's input. */
function targetStage(title, size, attributes = {}) {
  const view = stage(title, attributes);
  const [height, width] = size.map((v) => v / imageScale());
  view.look(0, 0, width, height);
  if (trace.image) photoCanvas().then((canvas) => view.paint(canvas, 0, 0, trace.image.width, trace.image.height));
  view.say(trace.image?.caption ?? "");
  view.area = trace.image ? null : box(0, 0, width, height, {class: "area"});
  return view;
}

const onPhoto = (corners) => corners.map((v) => v / imageScale());

const className = (k) => (k ? trace.classes[k] ?? `class ${k}` : "background");

/** The true boxes with their numbers. */
function truthBoxes(boxes) {
  const size = (trace.image?.width ?? 480) / 40;
  return Array.from({length: boxes.shape[0]}, (_, j) => {
    const [x1, y1, x2, y2] = onPhoto([...row(boxes, j)].slice(0, 4));
    const style = ofClass({class_index: boxes[5 * j + 4]});
    return [
      box(x1, y1, x2, y2, {class: "halo"}),
      box(x1, y1, x2, y2, {class: "truth", "data-truth": j}),
      svg("rect", {x: x1, y: y1, width: size * (j > 9 ? 1.6 : 1), height: size * 1.1, class: "label", style}),
      svg("text", {x: x1 + size * 0.2, y: y1 + size * 0.92, "font-size": size, class: "label-text"}, j),
    ];
  });
}

const truthText = (boxes, j) => `true box ${j}, ${className(boxes[5 * j + 4])}`;

const classKey = (k) =>
  el("i", {class: `key ${k ? "class-key" : "target-ignored"}`, style: k ? ofClass({class_index: k}) : null});

/** The true boxes in words, with the colours of their numbers. */
const truthList = (boxes) =>
  el(
    "ol",
    {class: "truths", start: 0},
    Array.from({length: boxes.shape[0]}, (_, j) => {
      const corners = el("span", {class: "quiet mono"}, ` ${boxText([...row(boxes, j)].slice(0, 4))}`);
      return el("li", {value: j}, classKey(boxes[5 * j + 4]), className(boxes[5 * j + 4]), corners);
    }),
  );

function givenCard(card, _, {gt_boxes: boxes, image}) {
  const view = targetStage("The image and its true boxes", image);
  view.draw(view.area, truthBoxes(boxes));
  card.append(
    el("h3", {}, "What training is given"),
    view.figure,
    saveButtons(() => view.figure, "the true boxes"),
    truthList(boxes),
  );
}

/** The texts of the filters of anchors, which are trace.py's ANCHOR_FILTERS. */
const FILTER_TEXTS = [
  ["drawn", "label 1 and label 0"],
  ["1", "label 1"],
  ["0", "label 0"],
  ["ignored", "all ignored"],
  ["1-not-drawn", "ignored: 1, but not drawn"],
  ["0-not-drawn", "ignored: 0, but not drawn"],
  ["between", "ignored: overlap between the limits"],
  ["outside", "ignored: they leave the image"],
  ["inside", "all that lie in the image"],
  ["all", "all anchors"],
];

/** [value, text, states] of each filter, and of that of a cell. */
function anchorFilters({states, filters}) {
  const counts = ANCHOR_STATES.map(() => 0);
  for (const state of states) counts[state]++;
  const total = (wanted) => wanted.reduce((sum, k) => sum + counts[k], 0);
  const listed = FILTER_TEXTS.map(([value, text]) => [value, `${text} (${total(filters[value])})`, filters[value]]);
  return [...listed, ["cell", "all anchors of the chosen cell", filters.all]];
}

/** The corners of anchor a at a cell. */
function anchorAt({base, stride}, y, x, a) {
  return [...row(base, a)].map((v, k) => v + stride * (k % 2 ? y : x));
}

/** All boxes as one path, which is much faster to draw than an element for each. */
function boxesPath(boxes, attributes) {
  const d = boxes.map(([x1, y1, x2, y2]) => `M${x1} ${y1}H${x2}V${y2}H${x1}Z`).join("");
  return d ? svg("path", {d, ...attributes}) : null;
}

function anchorsCard(card, layer, targets) {
  const {states, shape, stride, base} = targets;
  const [height, width] = shape;
  const count = base.shape[0];
  const place = targetPlace(layer);
  const filters = anchorFilters(targets);
  if (!filters.some(([value]) => value === place.show)) place.show = "drawn";
  const view = targetStage("Anchors on the image", targets.image, {
    tabindex: 0,
    role: "application",
    "aria-label": "Anchors on the image: click, or arrow keys, choose a cell; [ and ] the anchor; Escape leaves the cell",
  });
  const filter = choiceOf("Anchors shown", filters, place.show, (show) => {
    if (show === "cell") choose(...middle(), place.a);
    else set({show});
  });
  const words = el("p", {class: "anchor-words", "aria-live": "polite"});
  const table = el("div", {class: "scroll"});
  let before = place.show === "cell" ? "drawn" : place.show; // the filter to go back to
  const set = (change) => {
    Object.assign(place, change);
    if (place.show !== "cell") before = place.show;
    remember(true);
    draw();
  };
  const middle = () => [place.y ?? height >> 1, place.x ?? width >> 1];
  const choose = (y, x, a) =>
    set({show: "cell", y: clamp(y, 0, height - 1), x: clamp(x, 0, width - 1), a: clamp(a, 0, count - 1)});
  const index = (y, x, a) => (y * width + x) * count + a;
  const corners = (i) => anchorAt(targets, Math.floor(i / count / width), Math.floor(i / count) % width, i % count);
  const draw = () => {
    filter.value = place.show;
    const [, , wanted] = filters.find(([value]) => value === place.show);
    const isCell = place.show === "cell";
    const shown = ANCHOR_STATES.map(() => []);
    const first = isCell ? index(place.y, place.x, 0) : 0;
    const end = isCell ? first + count : states.length;
    for (let i = first; i < end; i++) if (wanted.includes(states[i])) shown[states[i]].push(onPhoto(corners(i)));
    const order = [5, 4, 3, 2, 0, 1];
    const halos = [0, 1].map((k) => boxesPath(shown[k], {class: "halo thin"}));
    const parts = order.map((k) => boxesPath(shown[k], {
      class: `target-${ANCHOR_STATES[k][1]}`,
      "data-state": k,
      "data-count": shown[k].length,
      "stroke-opacity": clamp(150 / shown[k].length, 0.15, 1), // thousands must not hide the image
    }));
    const one = isCell ? onPhoto(anchorAt(targets, place.y, place.x, place.a)) : null;
    const [cx, cy] = isCell ? onPhoto([(place.x + 0.5) * stride, (place.y + 0.5) * stride]) : [];
    const own = one && [
      box(...one, {class: "halo"}),
      box(...one, {class: `target-${ANCHOR_STATES[states[index(place.y, place.x, place.a)]][1]} is-chosen`}),
      svg("circle", {cx, cy, r: 3 * view.grain(), class: "sample"}),
    ];
    view.draw(view.area, halos, parts, truthBoxes(targets.gt_boxes), own);
    const chosen = isCell ? index(place.y, place.x, place.a) : null;
    const click = "Click the image to see the anchors of a cell.";
    words.replaceChildren(...(isCell ? anchorWords(layer, targets, chosen, place) : [click]));
    const rows = isCell && cellTable(targets, chosen - place.a, place.a, (a) => choose(place.y, place.x, a));
    table.replaceChildren(...(rows ? [rows] : []));
    const state = isCell ? states[chosen] : null;
    card.dataset.label = state === null ? "" : state > 1 ? -1 : state;
    card.dataset.shown = ANCHOR_STATES.map((_, k) => shown[k].length).join(" ");
  };
  view.frame.addEventListener("click", (event) => {
    const [x, y] = view.at(event).map((v) => Math.floor((v * imageScale()) / stride));
    choose(y, x, place.a);
  });
  view.frame.addEventListener("keydown", (event) => {
    const turn = {"[": -1, "]": 1}[event.key];
    const from = middle();
    if (event.key === "Escape" && place.show === "cell") {
      event.preventDefault();
      set({show: before});
    } else if (turn) choose(...from, place.a + turn);
    else {
      const by = arrowOf(event);
      if (by) choose(from[0] + by[1], from[1] + by[0], place.a);
    }
  });
  showAnchor = choose;
  const keys = [
    ["target-truth", "true box, with its number"],
    ["target-positive", "label 1: an object"],
    ["target-negative", "label 0: background"],
    ["target-ignored", "label −1: ignored"],
  ];
  card.append(
    el("h3", {}, "Anchors and true boxes"),
    el("label", {class: "row"}, "Anchors shown ", filter),
    view.figure,
    legendOf(keys),
    limitsView(targets.limits),
    saveButtons(() => view.figure, "the anchors"),
    words,
    table,
  );
  draw();
}

const moveText = (move) => Array.from(move, (v, k) => `${MOVES[k]} ${number(v, 4)}`).join(", ");

/** An anchor in words: its place, its label and why, its target, and the command that shows the arithmetic. */
function anchorWords(layer, found, i, {y, x, a}) {
  const {base, shape, states, overlaps, matches, gt_boxes: boxes} = found;
  const [text] = ANCHOR_STATES[states[i]];
  const best = matches[i] < 0 ? "" : ` Its largest overlap is ${number(overlaps[i], 4)}, with ${truthText(boxes, matches[i])}.`;
  const move = moveText(row(found.targets, i));
  const counts = states[i] === 1 ? "it counts in the loss" : "it does not count: the inside weights are 0";
  const target = matches[i] < 0 ? "" : ` Its target is ${move}; ${counts}.`;
  const head = el("strong", {}, `anchor ${a} of ${base.shape[0]} at row ${y}, column ${x}: `);
  const code = () => el("code", ...commandFor(layer, 0, [0, 0, a * shape[0] + y, x]));
  const command = layer.covered ? [el("br"), "its arithmetic: ", code()] : [];
  return [head, `${text}.${best}${target}`, ...command];
}

/** The settings by which a layer chose. */
function limitsView(limits) {
  const texts = Object.entries(limits).map(([name, value]) => `${name.toUpperCase()} ${number(value)}`);
  return el("p", {class: "quiet limits"}, texts.join(" · "));
}

/** The anchors of a cell, from the one at `first` on. */
function cellTable(found, first, chosen, choose) {
  const head = ["anchor", "label", "overlap", "true box", ...MOVES].map((text) => el("th", {scope: "col"}, text));
  const rows = Array.from({length: found.base.shape[0]}, (_, a) => {
    const i = first + a;
    const [text, colour] = ANCHOR_STATES[found.states[i]];
    const move = Array.from(row(found.targets, i), (v) => number(v, 3));
    const isMatched = found.matches[i] >= 0;
    const cells = isMatched ? [number(found.overlaps[i], 3), found.matches[i], ...move] : Array(6).fill("–");
    const attributes = {type: "button", class: "link", "aria-pressed": String(a === chosen), onclick: () => choose(a)};
    const one = el("button", attributes, `anchor ${a}`);
    return el(
      "tr",
      {class: a === chosen ? "is-chosen" : null},
      el("th", {scope: "row"}, one),
      el("td", {}, el("i", {class: `key target-${colour}`}), ` ${text}`),
      cells.map((cell) => el("td", {class: "mono"}, cell)),
    );
  });
  return el("table", {class: "cell-table"}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
}

/** [value, text] of the filters of the sampled rois, as in trace.py's SampledShot.count. */
function roiFilters({labels, sources, given, classes}) {
  const counts = Array(classes).fill(0);
  for (const label of labels) counts[label]++;
  const each = counts.map((count, k) => [String(k), `${className(k)} (${count})`]);
  const all = [
    ["all", `all rois (${labels.length})`],
    ["objects", `all but the background (${labels.length - counts[0]})`],
    ["true-boxes", `true boxes themselves (${sources.filter((source) => source >= given).length})`],
  ];
  return [...all, ...each.slice(1), each[0]];
}

/** The height and width of the photo, or of the area that rois cover, in pixels of the net's input. */
function extentOf(rois) {
  if (trace.image) return [trace.image.height, trace.image.width].map((v) => v * imageScale());
  return [4, 3].map((k) => Math.max(1, ...Array.from({length: rois.shape[0]}, (_, r) => rois[5 * r + k])));
}

function sampledCard(card, layer, targets) {
  const {rois, labels, gt_boxes: boxes} = targets;
  const count = rois.shape[0];
  const place = targetPlace(layer);
  const filters = roiFilters(targets);
  if (!filters.some(([value]) => value === place.show)) place.show = "all";
  const view = targetStage("Sampled rois on the image", extentOf(rois), {
    tabindex: 0,
    role: "application",
    "aria-label": "Sampled rois on the image: click one, or [ and ] choose it; Escape leaves it",
  });
  let chosen = place.isChosen ? Math.min(lastRoi.r, count - 1) : null;
  const filter = choiceOf("Rois shown", filters, place.show, (show) => {
    place.show = show;
    remember(true);
    draw();
  });
  const words = el("p", {class: "anchor-words", "aria-live": "polite"});
  const sets = {all: () => true, objects: (r) => labels[r] > 0, "true-boxes": (r) => targets.sources[r] >= targets.given};
  const isShown = (r) => (sets[place.show] ?? (() => labels[r] === Number(place.show)))(r);
  const corners = (r) => onPhoto([...row(rois, r)].slice(1));
  const choose = (r) => {
    chosen = r;
    place.isChosen = r !== null;
    if (r !== null) lastRoi.r = r;
    remember(true);
    draw();
  };
  const draw = () => {
    const shown = Array.from({length: count}, (_, r) => r).filter((r) => isShown(r) || r === chosen);
    const drawn = shown.sort((a, b) => labels[a] - labels[b]).map((r) => {
      const style = labels[r] ? ofClass({class_index: labels[r]}) : null;
      const dimmed = chosen !== null && r !== chosen ? " dimmed" : "";
      const kind = `${labels[r] ? "target-roi" : "target-ignored"}${dimmed}`;
      return box(...corners(r), {class: kind, style, "data-roi": r, "data-label": labels[r]});
    });
    const own = chosen === null ? null : [box(...corners(chosen), {class: "halo"}), box(...corners(chosen), {class: "chosen"})];
    view.draw(view.area, drawn, truthBoxes(boxes), own);
    words.replaceChildren(...(chosen === null ? ["Click a roi to see why it has its class."] : roiWords(targets, chosen)));
    card.dataset.shown = String(shown.length);
    card.dataset.label = chosen === null ? "" : labels[chosen];
  };
  view.frame.addEventListener("click", (event) => {
    const at = view.at(event).map((v) => v * imageScale());
    choose(roiAt(targets, at, chosen, isShown));
  });
  view.frame.addEventListener("keydown", (event) => {
    const by = {"[": -1, "]": 1}[event.key];
    if (event.key === "Escape" && chosen !== null) {
      event.preventDefault();
      choose(null);
    }
    if (!by) return;
    const among = Array.from({length: count}, (_, r) => r).filter(isShown);
    const k = among.indexOf(chosen);
    if (among.length) choose(among[clamp(k < 0 ? 0 : k + by, 0, among.length - 1)]);
  });
  const kinds = Array.from({length: targets.classes}, (_, k) => k);
  card.append(
    el("h3", {}, "Sampled rois and true boxes"),
    el("label", {class: "row"}, "Rois shown ", filter),
    view.figure,
    el(
      "p",
      {class: "quiet row legend"},
      el("span", {}, el("i", {class: "key target-truth"}), "true box, with its number"),
      [...kinds.slice(1), 0].map((k) => el("span", {}, classKey(k), `label ${k}: ${className(k)}`)),
    ),
    limitsView(targets.limits),
    saveButtons(() => view.figure, "the sampled rois"),
    words,
  );
  draw();
}

/** A sampled roi in words: where it comes from, its label and why, its target. */
function roiWords({rois, labels, sources, given, overlaps, matches, targets, gt_boxes: boxes}, r) {
  const texts = [`x1, y1, x2, y2 ${boxText([...row(rois, r)].slice(1))}.`];
  if (sources[r] >= given) texts.push(`It is ${truthText(boxes, sources[r] - given)} itself.`);
  else if (sources[r] >= 0) texts.push(`It is proposal ${sources[r]}.`);
  if (matches[r] < 0) texts.push("There are no true boxes.");
  else texts.push(`Its largest overlap is ${number(overlaps[r], 4)}, with ${truthText(boxes, matches[r])}.`);
  if (labels[r]) texts.push(`Its target, in the columns of its class, is ${moveText(row(targets, r))}.`);
  else texts.push("Background has no target.");
  return [el("strong", {}, `roi ${r}, label ${labels[r]}: ${className(labels[r])}. `), texts.join(" ")];
}
