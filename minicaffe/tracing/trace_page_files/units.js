// Pictures of a unit: the pixels that it reads, and what backward passes give there.

const UNIT_SIDE = 168; // pixels of the screen that a picture's longer side has

/** Where the pictures of the panel's layer stand: of the units that the page was written with, then of one that is asked for. */
const unitSlot = (layer) =>
  el("div", {class: "unit-slot"}, trace.units.filter((unit) => unit.layer === layer.name).map(unitCard));

function unitCard(unit) {
  const [rows, columns] = [unit.rows, unit.columns].map(([first, last]) => `${first} to ${last}`);
  const pictures = el("div", {class: "row unit-pictures"}, unit.pictures.map(unitPicture));
  return el(
    "section",
    {class: "card unit", tabindex: -1, "data-unit": unit.name, "aria-label": `The pixels that raise ${unit.name}`},
    el("h3", {}, "The pixels that raise ", el("span", {class: "mono"}, unit.words)),
    el("p", {class: "quiet"}, `rows ${rows}, columns ${columns} of the net's input; grey is 0, and a pixel's colours are its channels`),
    pictures,
    saveButtons(() => pictures, "the pictures of the unit"),
  );
}

function unitPicture({title, size, rgb}) {
  const [height, width] = rgb.shape;
  const scale = UNIT_SIDE / Math.max(height, width);
  const frame = el("div", {class: "unit-picture", style: `width: ${width * scale}px; height: ${height * scale}px`});
  read(rgb).then((pixels) => {
    frame.append(paintedCanvas(height, width, (i) => [pixels[3 * i], pixels[3 * i + 1], pixels[3 * i + 2], 255]));
  });
  const range = size === null ? "" : size ? ` ±${number(size, 3)}` : " 0 everywhere";
  return el("figure", {}, el("figcaption", {}, el("strong", {}, title), quiet(range)), frame);
}

/** A link that asks for the pictures of a number of a layer. */
function askUnit(layer, at) {
  const show = (answer) => {
    referTo(fromBase64(answer.arrays).buffer, answer);
    const card = unitCard(answer);
    document.querySelector("#panel .unit-slot")?.replaceChildren(card);
    card.scrollIntoView();
    card.focus({preventScroll: true});
    say("");
  };
  const ask = () => sender.send({unit: layer, at}, show);
  return el("button", {type: "button", class: "link", onclick: ask}, "Show the pixels that raise it");
}
