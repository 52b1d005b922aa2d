// A cell of a map under the mouse or chosen by click or keys: its place, value and receptive field, and how to explain it.

/** Steps of map, row and column. */
const CELL_KEYS = {
  ArrowUp: [0, -1, 0],
  ArrowDown: [0, 1, 0],
  ArrowLeft: [0, 0, -1],
  ArrowRight: [0, 0, 1],
  "[": [-1, 0, 0],
  "]": [1, 0, 0],
};

/** tilesView of a blob, with a view of its cells. Of weights: `what` is "filter". */
function cellsView(blob, role, what) {
  const {tiles} = blob;
  const element = tilesView(tiles, what, `${blob.name} (${role})`);
  const grid = element.querySelector(".tiles");
  const layer = state.layer;
  let numbers = null; // read when first wanted
  const mark = el("i", {class: "cell-mark", hidden: true});
  const text = el("p", {class: "mono cell-text", "aria-live": "polite"});
  const isMap = what !== "filter";
  const photo = isMap && !tiles.form ? fieldStage() : null; // no pixel counts for a target
  const box = el("div", {class: "cell-view", hidden: true}, el("div", {class: "cell-words"}, text), photo?.figure);
  let chosen = null;
  let explanation = null; // of the chosen cell
  let drawn = 0;

  const show = async (at) => {
    box.hidden = !at;
    mark.hidden = true;
    if (!at) return;
    const turn = ++drawn;
    const [exact, bytes] = await (numbers ??= Promise.all([read(blob.values), read(tiles.pixels)]));
    if (turn !== drawn) return; // the mouse has moved on
    const canvas = grid.querySelector(`canvas[data-map="${at.map}"]`);
    if (canvas) markCell(mark, canvas, tiles, at);
    const place = blockOf(tiles, at, blob.shape);
    text.replaceChildren(el("strong", {}, placeText(tiles, at, place, what)), ` ${valueText(blob, exact, bytes, at)}`);
    if (tiles.form) box.dataset.cell = `${at.map},${at.y},${at.x}`;
    else if (isMap) {
      const writer = role.startsWith("bottom") ? writersOf(layer, blob.name)[0] : layer;
      const field = writer === undefined ? null : receptiveField(writer, blob.name, place.rows, place.columns);
      text.append(el("br"), field ? `receptive field: ${fieldText(field)}` : "it depends on no pixel");
      photo.show(field);
      const ends = field ? [...field.rows, ...field.columns] : [];
      Object.assign(box.dataset, {cell: `${at.map},${at.y},${at.x}`, field: ends.join(",")});
    }
    if (chosen === at) text.append(...(explanation ??= explainIt(layer, blob, role, at.map, place)));
  };
  const choose = (at) => {
    chosen = at;
    explanation = null;
    if (at && tiles.form && trace.layers[layer].targets) {
      const {rows, columns} = blockOf(tiles, at, blob.shape);
      showAnchor?.(rows[0], columns[0], tiles.form === "labels" ? at.map : at.map >> 2);
    }
    box.classList.toggle("is-chosen", Boolean(at));
    element.dataset.chosen = at ? [at.map, at.y, at.x] : "";
    show(at);
  };
  grid.addEventListener("pointermove", (event) => {
    const at = cellUnder(event, tiles);
    const isChosen = at && chosen && ["map", "y", "x"].every((key) => at[key] === chosen[key]);
    show(isChosen ? chosen : (at ?? chosen));
  });
  grid.addEventListener("pointerleave", () => show(chosen));
  grid.addEventListener("click", (event) => {
    const at = cellUnder(event, tiles);
    if (at) choose(at);
  });
  grid.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen) choose(null);
    const by = CELL_KEYS[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const shown = [...grid.querySelectorAll("canvas")].map((canvas) => Number(canvas.dataset.map));
    const from = chosen ?? {map: shown[0], y: tiles.height >> 1, x: tiles.width >> 1};
    choose({
      map: clamp(from.map + by[0], shown[0], shown.at(-1)),
      y: clamp(from.y + by[1], 0, tiles.height - 1),
      x: clamp(from.x + by[2], 0, tiles.width - 1),
    });
  });
  const label = `Maps of ${blob.name}: arrow keys choose a cell, [ and ] the ${what}, Escape leaves it`;
  filled(grid, {tabindex: 0, role: "application", "aria-label": label}, []);
  element.append(mark, box);
  return element;
}

/** The pixel of a tile under a mouse event: {map, y, x}, or null. */
function cellUnder(event, tiles) {
  const canvas = event.target.closest("canvas[data-map]");
  if (!canvas) return null;
  const {left, top, width, height} = canvas.getBoundingClientRect();
  return {
    map: Number(canvas.dataset.map),
    y: clamp(Math.floor(((event.clientY - top) / height) * tiles.height), 0, tiles.height - 1),
    x: clamp(Math.floor(((event.clientX - left) / width) * tiles.width), 0, tiles.width - 1),
  };
}

/** A frame around the cell on its tile. */
function markCell(mark, canvas, tiles, {y, x}) {
  const [w, h] = [canvas.clientWidth / tiles.width, canvas.clientHeight / tiles.height];
  const size = (v) => Math.max(v, 3);
  mark.hidden = false;
  mark.style.cssText =
    `left: ${canvas.offsetLeft + canvas.clientLeft + x * w - 1}px; top: ${canvas.offsetTop + canvas.clientTop + y * h - 1}px;` +
    `width: ${size(w) + 2}px; height: ${size(h) + 2}px`;
}

/** The rows and columns of the blob that a pixel of a tile stands for. */
function blockOf(tiles, {y, x}, shape) {
  const [height, width] = shape.slice(-2);
  const {shrunk} = tiles;
  const run = (p, size) => Array.from({length: Math.min(shrunk, size - p * shrunk)}, (_, i) => p * shrunk + i);
  return {rows: run(y, height), columns: run(x, width)};
}

function placeText(tiles, at, {rows, columns}, what) {
  const along = (places) => (places.length > 1 ? `${places[0]}–${places.at(-1)}` : `${places[0]}`);
  const map = mapName(tiles, at.map, what);
  return `${map}, row ${along(rows)}, column ${along(columns)}:`;
}

/** The value where the page has the numbers, else what the picture says. */
function valueText(blob, values, pixels, {map, y, x}) {
  const {tiles} = blob;
  const place = (map * tiles.height + y) * tiles.width + x;
  if (values && tiles.shrunk === 1) return number(values[place], 7); // the maps are those of the first image
  const pixel = pixels[place];
  if (tiles.form === "labels") return number(pixel / 127 - 1);
  if (pixel === 255) return "not finite";
  const step = (tiles.high - tiles.low) / 254;
  const mean = tiles.shrunk > 1 ? ", the mean of these" : "";
  return `${number(tiles.low + pixel * step, 3)} ± ${number(step / 2, 2)}${mean} (from the picture)`;
}

/** The photo with a field on it. */
function fieldStage() {
  const view = stage(trace.image ? "Image" : "Input area", {"aria-hidden": "true"});
  let painted = false;
  return {
    figure: view.figure,
    show(field) {
      const shape = field && shapesOf.map((shapes) => shapes.top[field.blob]).find(Boolean);
      const size = trace.image ? [trace.image.width, trace.image.height] : shape ? [shape[3], shape[2]] : null;
      if (!size) return view.draw();
      view.look(0, 0, ...size);
      if (trace.image && !painted) photoCanvas().then((canvas) => view.paint(canvas, 0, 0, ...size));
      painted = true;
      const scale = imageScale();
      const edges = field && [field.columns[0], field.rows[0], field.columns[1] + 1, field.rows[1] + 1].map((v) => v / scale);
      view.draw(
        trace.image ? null : box(0, 0, ...size, {class: "area"}),
        edges && [box(...edges, {class: "halo"}), box(...edges, {class: "chosen field"})],
      );
    },
  };
}

/** The arithmetic of a number, for a blob's data: asked for where Python answers, else the command that shows it. */
function explainIt(i, blob, role, channel, {rows, columns}) {
  const layer = trace.layers[i];
  const top = layer.tops.indexOf(blob.name);
  if (role !== "top data" || top < 0 || !layer.bottoms.length) return [];
  const [row, column] = [rows[rows.length >> 1], columns[columns.length >> 1]];
  const isLabels = blob.tiles.form === "labels"; // their maps are below each other in one channel
  const at = isLabels ? [0, 0, channel * blob.tiles.height + row, column] : [0, channel, row, column];
  const pictures = trace.live && top === 0 && !isLabels ? [el("br"), askUnit(layer.name, at.slice(1))] : [];
  if (!layer.covered) return [...pictures, el("br"), `explain does not cover ${layer.type}`];
  const {example} = layer;
  const [, c, y, x] = top === 0 && example && !isLabels ? example.at : [];
  if (c === channel && rows.includes(y) && columns.includes(x)) return [...pictures, el("br"), "its arithmetic: ", ...explainedBy(example)];
  if (trace.live) return [...pictures, el("br"), "its arithmetic: ", asked(layer.name, top, at)];
  return [el("br"), "its arithmetic: ", el("code", ...commandFor(layer, top, at))];
}

function commandFor(layer, top, at) {
  const text = commandText("explain", [layer.name], `--at ${at.join(",")}`, top ? `--top ${top}` : "");
  return [{class: "command", tabindex: 0}, text];
}

/** A command for the page's net: more arguments after its files, more options after its own. */
function commandText(name, given = [], ...options) {
  const {net} = trace;
  const quoted = (text) => (/^[\w./:=,+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
  const files = [net.file, ...net.weights, ...given].map(quoted);
  return [`minicaffe ${name}`, ...files, net.options, ...options].filter(Boolean).join(" ");
}

/** The lines of an example, and a way to its sum. */
const explainedBy = ({lines, sum}) => [
  el("pre", {class: "mono explained"}, lines.join("\n")),
  sum ? el("button", {type: "button", class: "link", onclick: () => watchSum(sum)}, "Watch the sum") : null,
].filter(Boolean);

/** What explain says, as soon as it is there. */
function asked(layer, top, at) {
  const text = el("span", {}, "…");
  sender.send({explain: layer, top, at}, (answer) => {
    referTo(fromBase64(answer.arrays).buffer, answer);
    text.replaceChildren(...explainedBy(answer));
    say("");
  });
  return text;
}
