// A stage: a picture and an overlay in the same coordinates, in a frame of fixed aspect ratio.

const ASPECT = 4 / 3;

function stage(title, attributes = {}) {
  const frame = el("div", {class: "stage", ...attributes});
  const caption = el("figcaption", {}, el("strong", {}, title), quiet(""));
  const overlay = svg("svg", {"aria-hidden": "true"});
  frame.append(overlay);
  let world = [0, 0, 1, 1];
  let picture = null;
  let box = null;
  const bar = el("div", {});

  const place = () => {
    if (!picture) return;
    const [x, y, w, h] = world;
    Object.assign(picture.style, {
      left: `${(100 * (box[0] - x)) / w}%`,
      top: `${(100 * (box[1] - y)) / h}%`,
      width: `${(100 * box[2]) / w}%`,
      height: `${(100 * box[3]) / h}%`,
    });
  };
  return {
    frame,
    overlay,
    figure: el("figure", {class: "view"}, caption, frame, bar),
    /** Show at least this rectangle of the world. */
    look(x, y, w, h) {
      const width = Math.max(w, h * ASPECT); // the frame's aspect ratio, with the rectangle in the middle
      const height = width / ASPECT;
      world = [x - (width - w) / 2, y - (height - h) / 2, width, height];
      overlay.setAttribute("viewBox", world.join(" "));
      place();
    },
    /** Put a canvas at a rectangle of the world. */
    paint(canvas, x, y, w, h) {
      picture?.remove();
      picture = canvas;
      box = [x, y, w, h];
      frame.prepend(canvas);
      place();
    },
    draw(...children) {
      overlay.replaceChildren(...children.flat(Infinity).filter(Boolean));
    },
    say(text) {
      caption.lastChild.textContent = text;
    },
    /** Show the scale of the picture's colours; null: none. */
    scale(range) {
      if (bar.dataset.scale === String(range)) return;
      bar.dataset.scale = String(range);
      bar.replaceChildren(...(range ? [scaleBar(...range)] : []));
    },
    /** World units per pixel of the frame. */
    grain: () => world[2] / Math.max(frame.clientWidth, 1),
    /** The place of a mouse event in the world. */
    at(event) {
      const rect = frame.getBoundingClientRect();
      return [
        world[0] + ((event.clientX - rect.left) / rect.width) * world[2],
        world[1] + ((event.clientY - rect.top) / rect.height) * world[3],
      ];
    },
  };
}

const box = (x1, y1, x2, y2, attributes) =>
  svg("rect", {x: Math.min(x1, x2), y: Math.min(y1, y2), width: Math.abs(x2 - x1), height: Math.abs(y2 - y1), ...attributes});

/** Numbers in cells: [{h, w, value, strong}], if they fit; black on light cells. */
function cellTexts(cells, [low, high], grain) {
  const size = Math.min(0.22, 12.5 * grain);
  if (1 / grain < 38) return [];
  return cells.map(({h, w, value, strong}) => {
    const name = `cell${strong ? " strong" : ""}${Math.abs(value) > 0.6 * Math.max(-low, high) ? " on-light" : ""}`;
    const place = {x: w + 0.5, y: h + 0.5 + size * 0.36};
    return svg("text", {...place, "font-size": size, class: name}, number(value, 3));
  });
}

const photo = ofTrace(() => read(trace.image.rgb));

/** The image of the trace on a new canvas, or null. */
async function photoCanvas() {
  if (!trace.image) return null;
  const rgb = await photo();
  return paintedCanvas(trace.image.height, trace.image.width, (i) => [rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2], 255]);
}
