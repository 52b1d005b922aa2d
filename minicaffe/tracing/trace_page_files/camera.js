// The visible part of a large drawing: pan, zoom, fit.

const MARGIN = 16; // around the drawing, in its units
const READABLE = 0.9; // pixels per unit at which text is easy to read

/** A camera on an SVG element whose drawing is `width` by `height`; boxes are {x, y, w, h}. */
function cameraOn(world, width, height) {
  const at = {x: 0, y: 0, scale: 1}; // the drawing's point at the top left corner; pixels per unit
  const frame = () => {
    const size = world.getBoundingClientRect();
    return {width: size.width / at.scale, height: size.height / at.scale};
  };
  const move = (x, y, scale = at.scale) => {
    Object.assign(at, {x, y, scale});
    world.setAttribute("viewBox", `${x} ${y} ${frame().width} ${frame().height}`);
  };
  const middle = (x, y, scale = at.scale) => {
    const size = world.getBoundingClientRect();
    move(x - size.width / scale / 2, y - size.height / scale / 2, scale);
  };
  const camera = {
    fit() {
      const size = world.getBoundingClientRect();
      middle(width / 2, height / 2, Math.min(size.width / (width + 2 * MARGIN), size.height / (height + 2 * MARGIN), 1.5));
    },
    pan: (dx, dy) => move(at.x + dx / at.scale, at.y + dy / at.scale),
    /** Zoom around a point in pixels, or around the middle. */
    zoom(factor, point) {
      const size = world.getBoundingClientRect();
      const [px, py] = point ?? [size.width / 2, size.height / 2];
      const scale = clamp(at.scale * factor, 0.02, 4);
      // The drawing's point under the pointer stays there: x + px / scale is the same before and after.
      move(at.x + px / at.scale - px / scale, at.y + py / at.scale - py / scale, scale);
    },
    centre: (box, scale = at.scale) => middle(box.x + box.w / 2, box.y + box.h / 2, scale),
    readable: () => Math.max(at.scale, READABLE),
    /** Show the whole drawing, or if its text were too small, its top with `box` in the middle. */
    start(box) {
      camera.fit();
      if (at.scale >= READABLE || !box) return;
      camera.centre(box, READABLE);
      move(at.x, -MARGIN);
    },
    /** Whether a box is within the frame, above the controls at its lower edge. */
    sees(box) {
      const {width: w, height: h} = frame();
      const [right, bottom] = [at.x + w, at.y + h - 48 / at.scale];
      return box.x >= at.x && box.y >= at.y + 8 / at.scale && box.x + box.w <= right && box.y + box.h <= bottom;
    },
  };
  new ResizeObserver(() => move(at.x, at.y)).observe(world); // the viewBox has the element's aspect ratio
  whenDragged(world, (dx, dy) => camera.pan(-dx, -dy));
  world.addEventListener("wheel", (event) => turned(event, world, camera), {passive: false});
  return camera;
}

/** The wheel pans; with Ctrl, which a pinch sends too, it zooms. */
function turned(event, world, camera) {
  event.preventDefault();
  const rect = world.getBoundingClientRect();
  const zooms = event.ctrlKey || event.metaKey;
  if (zooms) camera.zoom(Math.exp(-event.deltaY / 300), [event.clientX - rect.left, event.clientY - rect.top]);
  else camera.pan(event.deltaX, event.deltaY);
}

/** Call moved(dx, dy), in pixels, while the element is dragged; a press that hardly moves is a click. */
function whenDragged(element, moved) {
  let last = null;
  let dragging = false;
  element.addEventListener("pointerdown", (event) => {
    last = [event.clientX, event.clientY];
    dragging = false;
  });
  element.addEventListener("pointermove", (event) => {
    if (!last || !event.buttons) return;
    const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
    if (!dragging && Math.hypot(dx, dy) < 4) return;
    if (!dragging) element.setPointerCapture(event.pointerId); // not at pointerdown: it would take the click from the node
    dragging = true;
    last = [event.clientX, event.clientY];
    moved(dx, dy);
  });
  element.addEventListener("pointerup", () => {
    last = null;
  });
  element.addEventListener(
    "click",
    (event) => {
      // In the capture phase, before the nodes see the click that ends a drag.
      if (dragging) event.stopPropagation();
      dragging = false;
    },
    true,
  );
}
