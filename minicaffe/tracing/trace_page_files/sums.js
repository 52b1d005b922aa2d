// The computation of a window's number, in steps: the window on the input, the products, the running sum or maximum. Places
// and values come from explain.

const TERM_MS = 500; // of a step at the usual speed

/** How a sum is walked: by "term" or "channel" (null: by channel where there are many terms), times the usual speed. */
const adding = {by: null, speed: 1};

/** Where the sum of the panel's layer stands: of its example, then of a cell that is asked for. */
function sumSlot(layer) {
  const slot = el("div", {class: "sum-slot"});
  if (layer.example?.sum) slot.append(sumView(layer, layer.example.sum));
  return slot;
}

/** Show the sum of a cell of the panel's layer. */
function watchSum(sum) {
  const view = sumView(trace.layers[state.layer], sum);
  document.querySelector("#panel .sum-slot").replaceChildren(view);
  view.scrollIntoView();
  view.focus({preventScroll: true});
}

function sumView(layer, sum) {
  const name = `${sum.top}[${sum.at.join(", ")}]`;
  const title = `${name}, ${sum.is_max ? "the maximum of its window" : "the sum of its window"}`;
  const root = el("section", {class: "card sum", tabindex: -1, "aria-label": title}, el("h3", {}, title));
  const i = trace.layers.indexOf(layer);
  return whenSeen(root, async () => root.append(...summing(root, await termsOf(i, sum), sum)));
}

/** The terms of a sum: for each its place, x, weight and product, and what has come of the first ones. */
async function termsOf(i, sum) {
  const bottom = trace.layers[i].bottoms[sum.bottom];
  const [places, x, weight] = await Promise.all([sum.places, sum.x, sum.weight].map(read));
  const terms = Array.from(x, (value, t) => {
    const [, channel, row, column] = places.subarray(4 * t, 4 * t + 4);
    return {channel, row, column, x: value, weight: weight?.[t], product: weight ? value * weight[t] : value};
  });
  const isMax = sum.is_max;
  const running = [isMax ? -Infinity : 0];
  const after = (before, product) => (isMax ? (product > before ? product : before) : before + product); // NaN never wins
  for (const {product} of terms) running.push(after(running.at(-1), product));
  const channels = new Map(); // channel -> the numbers of its first term and of the one after its last
  terms.forEach(({channel}, t) => channels.set(channel, [channels.get(channel)?.[0] ?? t, t + 1]));
  const [writer] = writersOf(i, bottom);
  const written = trace.steps[stepsOf[writer]?.forward]?.blobs ?? [];
  const blob = written.find((other) => other.name === bottom && other.part === "data");
  const [, , height, width] = shapesOf[i].bottom[bottom];
  const pixels = blob?.tiles && (await read(blob.tiles.pixels));
  const shown = trace.layers[writer]?.split ? trace.layers[writer].bottoms[0] : bottom;
  return {terms, isMax, running, channels, bottom: shown, height, width, hasWeights: Boolean(weight), tiles: blob?.tiles, pixels};
}

/** The parts of the view: buttons, stages, curve, text. */
function summing(root, found, sum) {
  const {terms, channels} = found;
  const count = terms.length;
  const byChannel = () => channels.size > 1 && (adding.by ?? (count > 64 ? "channel" : "term")) === "channel";
  let done = count; // how many terms are added
  let playing = null;
  const ends = [...channels.values()].map(([, end]) => end);
  const next = (by) => {
    if (!byChannel()) return clamp(done + by, 0, count);
    return by > 0 ? (ends.find((end) => end > done) ?? count) : (ends.findLast((end) => end < done) ?? 0);
  };
  const views = sumStages(found);
  const curve = runningCurve(found);
  const text = el("p", {class: "mono", "aria-live": "polite"});
  const stop = () => {
    clearInterval(playing);
    playing = null;
    text.setAttribute("aria-live", "polite");
    play.textContent = "▶";
    play.setAttribute("aria-label", "Play the sum");
  };
  const start = () => {
    clearInterval(playing);
    playing = setInterval(() => {
      if (!root.isConnected || done === count) stop();
      else to(next(1));
    }, TERM_MS / adding.speed);
  };
  const toggle = () => {
    if (playing) return stop();
    if (done === count) to(0);
    text.setAttribute("aria-live", "off"); // a reader of the screen could not keep up
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "Pause the sum");
    start();
  };
  const to = (wanted) => {
    done = wanted;
    range.value = done;
    range.setAttribute("aria-valuetext", `${done} of ${count} terms`);
    views.draw(done);
    curve.draw(done);
    text.textContent = sumText(found, sum, done);
    root.dataset.done = done;
  };
  const stepTo = (wanted) => {
    stop();
    to(wanted);
  };
  const play = button("▶", "Play the sum", toggle, {class: "play moving"});
  const oninput = () => stepTo(Number(range.value));
  const range = el("input", {type: "range", min: 0, max: count, "aria-label": "Terms added", oninput});
  const speeds = [0.5, 1, 2, 4, 16].map((speed) => [speed, `${speed}×`]);
  const speed = choiceOf("Speed of the sum", speeds, adding.speed, (value) => {
    adding.speed = Number(value);
    if (playing) start();
  });
  speed.classList.add("moving");
  const steps = [["term", "by term"], ["channel", "by channel"]];
  const by = choiceOf("Step of the sum", steps, byChannel() ? "channel" : "term", (value) => (adding.by = value));
  const controls = el(
    "div",
    {class: "row controls"},
    button("⇤", "No term", () => stepTo(0)),
    button("‹", "One step back", () => stepTo(next(-1))),
    play,
    button("›", "One step on", () => stepTo(next(1))),
    button("⇥", "All terms", () => stepTo(count)),
    channels.size > 1 ? by : null,
    speed,
    range,
  );
  const element = el("div", {class: "views"}, views.figures);
  new ResizeObserver(() => views.draw(done)).observe(element); // numbers in cells need room
  to(count);
  return [controls, text, element, curve.figure, saveButtons(() => element, "the window")];
}

function sumText({terms, isMax, running, bottom, hasWeights}, {bias, divisor, value}, done) {
  const last = terms[done - 1];
  const at = last && `${bottom}[${last.channel}, ${last.row}, ${last.column}]`;
  const factor = hasWeights ? ` × ${number(last?.weight)} = ${number(last?.product)}` : "";
  const term = last ? `${at} = ${number(last.x)}${factor}; ` : "";
  const found = done || !isMax ? number(running[done], 7) : "none";
  const soFar = `the ${isMax ? "greatest" : "sum"} of ${done} of ${terms.length} is ${found}`;
  if (done < terms.length) return term + soFar;
  const whole = bias === null ? running[done] : running[done] + bias;
  const more = [
    bias === null ? "" : `; with the bias ${number(bias)} it is ${number(whole, 7)}`,
    divisor === 1 ? "" : `; divided by ${number(divisor)} it is ${number(whole / divisor, 7)}`,
  ];
  return `${term}${soFar}${more.join("")}; the layer's: ${number(value, 7)}`;
}

/** The stages: the window on the input; its values, weights and products, tap by tap, of the channel that is being added. */
function sumStages(found) {
  const {terms, hasWeights} = found;
  const input = inputStage(found);
  const parts = hasWeights ? {x: "Window", weight: "Weights", product: "Products"} : {x: "Window"};
  const closeUps = Object.entries(parts).map(([key, title]) => tapsStage(found, key, title));
  const draw = (done) => {
    const now = terms[Math.max(done - 1, 0)];
    const [first, end] = found.channels.get(now.channel);
    const own = terms.slice(first, end);
    const [rows, columns] = ["row", "column"].map((key) => [...new Set(own.map((term) => term[key]))].sort((a, b) => a - b));
    input.draw(now, rows, columns, done > 0);
    const taps = own.map((term) => ({...term, h: rows.indexOf(term.row), w: columns.indexOf(term.column)}));
    for (const stage of closeUps) stage.draw(taps, rows.length, columns.length, done - first, found.running[done]);
  };
  return {figures: [input, ...closeUps].map(({figure}) => figure), draw};
}

/** The channel of the input, with the window and the place of the last term. */
function inputStage({bottom, height, width, tiles, pixels}) {
  const view = stage(`Input ${bottom}`, {"aria-hidden": "true"});
  const has = (channel) => tiles && channel < tiles.page;
  view.scale(tiles && [tiles.low, tiles.high]);
  let painted = null; // the channel
  const draw = ({channel, row, column}, rows, columns, isAdded) => {
    const [top, left, end, right] = [rows[0], columns[0], rows.at(-1) + 1, columns.at(-1) + 1];
    const [x, y] = [Math.min(left, 0), Math.min(top, 0)]; // a window may lie on padding
    view.look(x, y, Math.max(right, width) - x, Math.max(end, height) - y);
    if (has(channel) && painted !== channel) {
      view.paint(tileCanvas(tiles, pixels, channel), 0, 0, tiles.width * tiles.shrunk, tiles.height * tiles.shrunk);
      painted = channel;
    }
    view.say(`channel ${channel}${has(channel) ? "" : " is not in the page"}, [${top}, ${left}] to [${end - 1}, ${right - 1}]`);
    view.draw(
      box(0, 0, width, height, {class: "area"}),
      box(left, top, right, end, {class: "halo"}),
      box(left, top, right, end, {class: "chosen", "data-window": `${top},${left},${end},${right}`}),
      isAdded ? box(column, row, column + 1, row + 1, {class: "asked"}) : null,
    );
  };
  return {figure: view.figure, draw};
}

const MOST_TAPS = 400; // that have a frame each

/** A number of each tap of the window, `key` of its terms; the products come as they are added. */
function tapsStage({terms, isMax}, key, title) {
  const view = stage(title, {"aria-hidden": "true", "data-taps": key});
  const range = rangeOf(terms.map((term) => term[key]), 0, terms.length);
  view.scale(range);
  const draw = (taps, height, width, added, best) => {
    const shown = key === "product" ? taps.slice(0, added) : taps;
    const cells = shown.map((tap, t) => ({...tap, value: tap[key], strong: t === added - 1}));
    const values = new Map(cells.map(({h, w, value}) => [h * width + w, value]));
    const colour = (p) => (values.has(p) ? colourOf(values.get(p), ...range) : [0, 0, 0, 0]);
    view.look(-0.1, -0.1, width + 0.2, height + 0.2);
    view.paint(paintedCanvas(height, width, colour), 0, 0, width, height);
    const last = taps.slice(0, added).slice(-1);
    const winner = isMax && taps.slice(0, added).find(({x}) => x === best);
    view.draw(
      box(0, 0, width, height, {class: "area"}),
      taps.length > MOST_TAPS ? [] : cellBoxes(taps.slice(0, added), "read"),
      cellTexts(cells, range, view.grain()),
      winner ? svg("circle", {cx: winner.w + 0.5, cy: winner.h + 0.5, r: 0.46, class: "winner"}) : null,
      cellBoxes(last, "halo"),
      cellBoxes(last, "chosen"),
    );
  };
  return {figure: view.figure, draw};
}

/** The running sum or maximum over the terms as a curve, with a mark at those that are added. */
function runningCurve({running, terms, isMax}) {
  const finite = running.map((v) => (Number.isFinite(v) ? v : 0));
  const [low, high] = [Math.min(0, ...finite), Math.max(0, ...finite)];
  const down = (v) => 100 - (100 * (v - low)) / (high - low || 1);
  const points = finite.map((v, t) => `${t},${down(v)}`).join(" ");
  const mark = svg("line", {class: "zero", y1: 0, y2: 100});
  const picture = svg(
    "svg",
    {viewBox: `0 0 ${terms.length} 100`, preserveAspectRatio: "none", "aria-hidden": "true"},
    svg("line", {class: "base", x1: 0, x2: terms.length, y1: down(0), y2: down(0)}),
    svg("polyline", {points}),
    mark,
  );
  const caption = `the ${isMax ? "maximum" : "sum"} so far, ${number(low, 4)} to ${number(high, 4)}`;
  return {
    figure: el("figure", {class: "running"}, picture, el("figcaption", {class: "quiet"}, caption)),
    draw(done) {
      mark.setAttribute("x1", done);
      mark.setAttribute("x2", done);
    },
  };
}
