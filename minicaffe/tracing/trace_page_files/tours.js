// Guided tours: a card with a text at each stop, and a ring with an arrow around its target.

const ARROW = 110; // pixels, at most
const CARD_MARGIN = 8; // of the card, as in tours.css
const QUESTION_SEEN = 60; // pixels of the question that are enough to see that there is one
const SETTLES = 1200; // ms in which a stop's place is drawn, and its target is kept in view

const guided = {tour: null, stop: 0, since: 0, ask: null};

for (const kind of ["wheel", "touchmove"]) {
  addEventListener(kind, () => (guided.since = -SETTLES), {passive: true}); // the reader scrolls: no more of ours
}

/** What the page's address has of the tour that is open. */
const guidedWords = () => (guided.tour ? {tour: guided.tour.name, stop: guided.stop + 1} : {});

/** The stop that an address names, if any. */
function stopOf(words) {
  const tour = trace.tours?.find((one) => one.name === words.get("tour"));
  return tour?.stops[words.get("stop") === null ? 0 : Number(words.get("stop")) - 1];
}

/** A button for each tour. */
function offerTours(nav) {
  nav.prepend(
    ...(trace.tours ?? []).map((tour) =>
      button(`Tour: ${tour.title}`, `Begin the tour: ${tour.title}`, () => goToStop(tour, 0), {class: "begin-tour"}),
    ),
  );
}

/** Open or close the card as the page's address says. */
function followAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const stop = stopOf(words);
  const tour = stop && trace.tours.find((one) => one.stops.includes(stop));
  if (tour) openCard(tour, tour.stops.indexOf(stop));
  else removeCard();
}

function goToStop(tour, stop) {
  openCard(tour, stop);
  show({view: "layers", detection: null, ...placeOf(new URLSearchParams(tour.stops[stop].address)), turn: performance.now()});
}

function closeTour() {
  const opener = document.querySelectorAll(".begin-tour")[trace.tours.indexOf(guided.tour)];
  removeCard();
  remember(true);
  opener.focus();
}

function removeCard() {
  guided.tour = null;
  for (const element of document.querySelectorAll(".tour, .tour-pointer")) element.remove();
}

/** The stop of the card, as it is on a page whose net runs or does not. */
function stopHere() {
  const stop = guided.tour.stops[guided.stop];
  return trace.live ? stop : {...stop, ...stop.without_python};
}

function openCard(tour, stop) {
  Object.assign(guided, {tour, stop, since: performance.now()});
  const card = document.querySelector(".tour") ?? newCard();
  const {title, text, ask} = stopHere();
  const last = stop === tour.stops.length - 1;
  card.setAttribute("aria-label", `Tour: ${tour.title}`);
  card.querySelector(".tour-where").textContent = `${tour.title}: ${stop + 1} of ${tour.stops.length}`;
  card.querySelector(".tour-text").replaceChildren(
    el("h2", {}, title),
    ...text.split(/\n\s*\n/).map((paragraph) => el("p", {}, paragraph)),
  );
  guided.ask = ask && askView(ask, `${tour.name} ${stop}`);
  card.querySelector(".tour-asks").replaceChildren(...(ask ? [guided.ask.element] : []));
  tourNote();
  card.querySelector(".tour-back").disabled = stop === 0;
  const next = card.querySelector(".tour-next");
  next.textContent = last ? "Close" : "Next ›";
  card.scrollTop = 0;
  if (!card.contains(document.activeElement) || document.activeElement.disabled) next.focus({preventScroll: true});
}

/** Say in the card what the reader has to know of the net's runs: Python is not there yet, or the text's numbers are older. */
function tourNote() {
  const note = document.querySelector(".tour-note");
  if (!note) return;
  const isWaiting = isLoading && stopHere().without_python;
  const back = () => sender.send({restart: true});
  const parts = isWaiting
    ? ["Python is still being loaded: your change runs as soon as it is there."]
    : trace.live && !trace.live.is_first
      ? ["The net has run again. The text has the numbers of the first pass. ", button("Back to the first pass", "Run the net as at first", back)]
      : [];
  note.replaceChildren(...parts);
}

function newCard() {
  const by = (count) => {
    const stop = guided.stop + count;
    if (count > 0 && isLast()) closeTour();
    else if (stop >= 0) goToStop(guided.tour, stop);
  };
  const isLast = () => guided.stop === guided.tour.stops.length - 1;
  const keys = {ArrowLeft: () => by(-1), ArrowRight: () => isLast() || by(1), Escape: closeTour};
  const onkeydown = (event) => {
    const writes = event.key !== "Escape" && event.target.closest("input");
    if (writes || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault(); // the timeline has the arrow keys otherwise
    keys[event.key]();
  };
  const card = el(
    "section",
    {class: "tour", onkeydown},
    el("div", {class: "row"}, el("p", {class: "tour-where quiet"}), button("✕", "Close the tour (Escape)", closeTour)),
    el("div", {class: "tour-text", "aria-live": "polite"}),
    el("p", {class: "tour-note", role: "status"}),
    el("div", {class: "tour-asks"}),
    el(
      "div",
      {class: "row"},
      button("‹ Back", "Back (left arrow)", () => by(-1), {class: "tour-back"}),
      el("button", {type: "button", class: "tour-next", title: "Next (right arrow)", onclick: () => by(1)}),
    ),
  );
  const asks = card.querySelector(".tour-asks");
  const toQuestion = button("Question ↓", "Scroll to the question", () => asks.scrollIntoView(), {class: "tour-to-question"});
  card.lastChild.insertBefore(toQuestion, card.querySelector(".tour-next"));
  const pointer = svg("svg", {class: "tour-pointer", "aria-hidden": "true"});
  document.body.append(card, pointer);
  let drawn = "";
  const follow = () => {
    if (!card.isConnected) return;
    guided.ask?.follow();
    const {point} = stopHere();
    const target = point ? document.querySelector(point) : null;
    if (target && performance.now() - guided.since < SETTLES) bringIntoView(target);
    card.classList.toggle("at-right", coversLessAtRight(card, target));
    toQuestion.hidden = !guided.ask || asks.getBoundingClientRect().top + QUESTION_SEEN < card.lastChild.getBoundingClientRect().top;
    const places = [target && seenPart(target), card.getBoundingClientRect()].map((rect) => rect && corners(rect));
    if (String(places) !== drawn) {
      drawn = String(places);
      pointer.replaceChildren(...(places[0] ? pointing(...places) : []));
    }
    requestAnimationFrame(follow); // the target may come late, move and scroll
  };
  follow();
  return card;
}

/** Whether the card hides less of a target beside the graph if it stands at the right, as on a live page in a narrow window. */
function coversLessAtRight(card, target) {
  if (innerWidth <= 820 || !target?.closest("#panel")) return false;
  const {left, right} = target.getBoundingClientRect();
  const width = card.offsetWidth;
  const covered = (from) => Math.max(0, Math.min(right, from + width) - Math.max(left, from));
  return covered(innerWidth - width - CARD_MARGIN) < covered(CARD_MARGIN);
}

function bringIntoView(target) {
  for (let around = target; around; around = around.parentElement) if (around.localName === "details") around.open = true;
  const panel = target.closest("#panel");
  if (!panel) return target.closest("section")?.scrollIntoView({block: "nearest"});
  const fits = target.getBoundingClientRect().height <= panel.clientHeight;
  const beside = innerWidth > 820; // on a phone the card covers the lower part
  target.scrollIntoView({block: fits && beside ? "center" : "start"});
}

const corners = ({left, top, right, bottom}) => [left, top, right, bottom].map(Math.round);

/** The part of an element within the window and what it scrolls in; null where none is. */
function seenPart(target) {
  const edges = [target, target.closest("#panel, #graph") ?? document.body].map((element) => element.getBoundingClientRect());
  const left = Math.max(4, ...edges.map((rect) => rect.left - 4));
  const top = Math.max(4, ...edges.map((rect) => rect.top - 4));
  const right = Math.min(innerWidth - 4, ...edges.map((rect) => rect.right + 4));
  const bottom = Math.min(innerHeight - 4, ...edges.map((rect) => rect.bottom + 4));
  return left < right && top < bottom ? {left, top, right, bottom} : null;
}

/** A ring around a rectangle and an arrow to it from another, both as corners. */
function pointing(ring, card) {
  const [x1, y1, x2, y2] = ring;
  const [start, to] = [edgePoint(card, ring), edgePoint(ring, card)];
  const shape = {x: x1, y: y1, width: x2 - x1, height: y2 - y1, rx: 8};
  const [dx, dy] = [to[0] - start[0], to[1] - start[1]];
  const long = Math.hypot(dx, dy);
  const overlap = ring[0] < card[2] && card[0] < ring[2] && ring[1] < card[3] && card[1] < ring[3];
  const parts = [svg("rect", {...shape, class: "tour-halo"}), svg("rect", {...shape, class: "tour-ring"})];
  if (overlap || long < 24) return parts;
  const [ux, uy] = [dx / long, dy / long];
  const head = [[0, 0], [-13, 6], [-13, -6]].map(([a, b]) => [to[0] + a * ux - b * uy, to[1] + a * uy + b * ux].join(","));
  const reach = Math.min(long, ARROW); // a longer one would lie across other parts of the page
  const line = {x1: to[0] - reach * ux, y1: to[1] - reach * uy, x2: to[0] - 10 * ux, y2: to[1] - 10 * uy};
  const arrow = ["tour-halo", "tour-ring"].map((name) => svg("line", {...line, class: name}));
  return [...parts, ...arrow, svg("polygon", {points: head.join(" "), class: "tour-head"})];
}

/** Where the line from a rectangle's middle to another's leaves it; for neighbours, straight across. */
function edgePoint([x1, y1, x2, y2], [a1, b1, a2, b2]) {
  const between = (low, high, other, otherEnd) => {
    const [from, to] = [Math.max(low, other), Math.min(high, otherEnd)];
    return from < to ? (from + to) / 2 : other > high ? high : low;
  };
  return [between(x1, x2, a1, a2), between(y1, y2, b1, b2)];
}
