// The detections, drawn on the image.

const USUAL = 50; // percent: the lowest score that detect shows

const isUsual = (one) => one.score * 100 >= USUAL;

function detectionsPanel() {
  const view = stage("Image");
  let chosen = null;
  let found = trace.detections;
  let walked = null; // the row whose way is shown
  let way = null;
  let run = null;
  const field = el("input", {type: "range", min: 0, max: 100, value: USUAL, "aria-label": "Lowest score, in percent"});
  const output = el("output", {});
  const list = el("ol", {class: "detections", start: 0});
  const walk = el("div", {});
  const open = (k) => {
    chosen = state.detection = k;
    walked = found[k]?.row ?? null;
    if (k !== null) field.value = Math.min(field.value, Math.floor(found[k].score * 100));
    draw();
  };
  const choose = (k, inPicture) => {
    open(chosen === k ? null : k);
    remember(true);
    const steps = inPicture ? walk.querySelector("ol") : null;
    list.querySelector(`[data-detection="${k}"]`)?.focus({preventScroll: steps !== null}); // below a long list
    steps?.scrollIntoView({block: "nearest"});
  };
  const draw = () => {
    const kept = found.map((one, k) => ({...one, k})).filter((one) => one.score * 100 >= field.value);
    if (!kept.some((one) => one.k === chosen)) chosen = walked = null;
    output.textContent = `score at least ${number(field.value / 100, 2)}: ${kept.length} of ${found.length}`;
    const card = walked === null ? null : walkCard(way, way.found, run, walked, show);
    walk.replaceChildren(...(card ? [card] : []));
    paintMapped(view, chosen === null ? null : mapOfDetection(found[chosen]));
    const labelled = kept.filter((one) => chosen === null || one.k === chosen);
    view.draw(
      [...kept].reverse().map((one) => detectionBox(one, chosen, choose)), // the best on top
      card?.boxes ?? [],
      labelled.slice(0, MOST_LABELS).map(detectionLabel),
    );
    list.replaceChildren(...kept.map((one) => detectionItem(one, chosen, choose)));
    list.dataset.sources = found.map((one) => (one.row === undefined ? "" : way.found.sources[one.row])).join(" ");
  };
  const show = (row) => {
    walked = row;
    draw();
    walk.firstChild.focus({preventScroll: true}); // the button is gone
  };
  field.addEventListener("input", draw);
  view.look(0, 0, trace.image.width, trace.image.height);
  draw();
  const sliders = el("div", {}, el("label", {class: "slider"}, field, output));
  const asked = state.detection;
  readLineage().then((read) => {
    way = read;
    const ran = (now) => {
      run = now;
      found = detectionsOf(way, run);
      open(null);
    };
    if (way) sliders.append(nmsSlider(way.found, ran));
    if (asked in found) open(asked);
  });
  return [
    el(
      "div",
      {class: "head"},
      el("h2", {}, "Detections"),
      el("p", {class: "quiet"}, "of the net's last pass, after NMS; boxes x1, y1, x2, y2 in pixels of the photo"),
    ),
    el("section", {class: "card result"}, sliders, view.figure, saveButtons(() => view.figure, "the detections"), walk, list),
  ];
}

const MOST_LABELS = 30;

const ofClass = (found) => `--class: ${classColour(found.class_index)}`;

/** What the net makes of the photo, which the page opens at: "detections", "classes", or null. */
const resultKind = () => (trace.image && ((trace.detections && "detections") || (trace.best_classes && "classes"))) || null;

/** The colour of a class, as `detect --draw` has it. */
function classColour(k) {
  const count = trace.colours.length;
  return trace.colours[(((k - 1) % count) + count) % count];
}

const shownBox = (found) => found.box.map((v) => v / trace.image.photo);

function detectionBox(found, chosen, choose) {
  const other = chosen !== null && chosen !== found.k;
  return svg(
    "g",
    {class: `detection${other ? " dimmed" : ""}`, "data-class": found.class, style: ofClass(found), onclick: () => choose(found.k, true)},
    box(...shownBox(found), {class: "halo"}),
    box(...shownBox(found), {class: "chosen"}),
  );
}

function detectionItem(found, chosen, choose) {
  const attributes = {
    type: "button",
    class: "link detection-item",
    "data-detection": found.k,
    "aria-pressed": String(chosen === found.k),
    onclick: () => choose(found.k),
  };
  const [x1, y1, x2, y2] = found.box;
  const size = `${number(x2 - x1 + 1, 4)} × ${number(y2 - y1 + 1, 4)}`;
  return el(
    "li",
    {value: found.k},
    el("i", {class: "key class-key", style: ofClass(found)}),
    el("button", attributes, el("strong", {}, found.class), ` ${found.score.toFixed(3)} `),
    el("span", {class: "quiet mono"}, ` ${found.box.map((v) => number(v, 4)).join(", ")} (${size})`),
  );
}

/** Class and score above the box, or in it if there is no room above. */
function detectionLabel(found) {
  const [x, y] = shownBox(found);
  const text = `${found.class} ${found.score.toFixed(2)}`;
  const size = Math.max(trace.image.width / 56, 6);
  const top = y > size * 1.4 ? y - size * 1.3 : y;
  return [
    svg("rect", {x, y: top, width: text.length * size * 0.58 + size * 0.6, height: size * 1.3, class: "label", style: ofClass(found)}),
    svg("text", {x: x + size * 0.3, y: top + size * 0.97, "font-size": size, class: "label-text"}, text),
  ];
}
