// The net as a graph: boxes of layers, stacked parts for layers in place, small joints for splits; pan, zoom, fit.

function graphView(root, choose) {
  const {width, height, nodes, edges} = trace.graph;
  const margin = 16;
  const readable = () => Math.max(camera.scale, 0.9);
  const boxes = nodes.map((node) => nodeBox(node, choose));
  const world = svg("svg", {role: "group", "aria-label": "Layers: up and down go from layer to layer"},
    svg("defs", {}, arrowHead()), svg("g", {class: "edges"}, edges.map(edgePath)), svg("g", {}, boxes));
  const byLayer = new Map(nodes.map((node, i) => [node.layer, {node, box: boxes[i]}]));
  const camera = {x: 0, y: 0, scale: 1};  // world units at the top left corner; pixels per world unit

  const place = () => {
    const size = world.getBoundingClientRect();
    world.setAttribute("viewBox", `${camera.x} ${camera.y} ${size.width / camera.scale} ${size.height / camera.scale}`);
  };
  const fit = () => {
    const size = world.getBoundingClientRect();
    camera.scale = Math.min(size.width / (width + 2 * margin), size.height / (height + 2 * margin), 1.5);
    camera.x = width / 2 - size.width / camera.scale / 2;
    camera.y = height / 2 - size.height / camera.scale / 2;
    place();
  };
  const zoom = (factor, at) => {
    const size = world.getBoundingClientRect();
    const [px, py] = at ?? [size.width / 2, size.height / 2];
    const scale = Math.min(Math.max(camera.scale * factor, 0.02), 4);
    camera.x += px / camera.scale - px / scale;
    camera.y += py / camera.scale - py / scale;
    camera.scale = scale;
    place();
  };
  const centre = (layer) => {
    const {node} = byLayer.get(layer) ?? {};
    if (!node) return;
    const size = world.getBoundingClientRect();
    camera.x = node.x + node.w / 2 - size.width / camera.scale / 2;
    camera.y = node.y + node.h / 2 - size.height / camera.scale / 2;
    place();
  };
  const seen = (node) => {
    const size = world.getBoundingClientRect();
    return node.x >= camera.x && node.y >= camera.y + 8 / camera.scale
      && node.x + node.w <= camera.x + size.width / camera.scale && node.y + node.h <= camera.y + (size.height - 48) / camera.scale;
  };
  const tools = el("div", {class: "tools"},
    button("+", "Zoom in", () => zoom(1.3)), button("−", "Zoom out", () => zoom(1 / 1.3)),
    button("Fit", "Fit the whole net", fit), button("Here", "Go to the current layer", () => { camera.scale = readable(); centre(current); }));
  root.append(world, tools, finder(choose));

  let current = 0;
  whenDragged(world, (dx, dy) => { camera.x -= dx / camera.scale; camera.y -= dy / camera.scale; place(); });
  world.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = world.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY / 300), [event.clientX - at.left, event.clientY - at.top]);
    else { camera.x += event.deltaX / camera.scale; camera.y += event.deltaY / camera.scale; place(); }
  }, {passive: false});
  new ResizeObserver(place).observe(world);

  fit();
  if (camera.scale < readable()) {
    camera.scale = readable();
    centre(nodes[0]?.layer);
    camera.y = -margin;
    place();
  }

  return (state) => {
    byLayer.get(current)?.box.classList.remove("current");
    byLayer.get(current)?.box.setAttribute("tabindex", -1);
    current = state.layer;
    const {node, box} = byLayer.get(current) ?? {};
    if (!box) return;
    box.classList.add("current");
    box.setAttribute("tabindex", 0);
    if (world.contains(document.activeElement)) box.focus({preventScroll: true});
    if (!seen(node)) centre(current);
  };
}

/** A field that goes to a layer by its name. */
function finder(choose) {
  const field = el("input", {type: "search", list: "layer-names", placeholder: "Find a layer", "aria-label": "Find a layer", onchange: () => {
    const wanted = field.value.toLowerCase();
    const exact = trace.layers.findIndex((layer) => layer.name.toLowerCase() === wanted);
    const found = exact >= 0 ? exact : trace.layers.findIndex((layer) => layer.name.toLowerCase().includes(wanted));
    if (!wanted || found < 0) return;
    field.value = "";
    choose(found);
  }});
  return el("div", {class: "finder"}, field, el("datalist", {id: "layer-names"}, trace.layers.map((layer) => el("option", {value: layer.name}))));
}

function nodeBox(node, choose) {
  const layer = trace.layers[node.layer];
  const reached = Object.keys(stepsOf[node.layer]).length > 0;
  const failed = trace.error?.layer === node.layer;
  const shapes = Object.values(shapesOf[node.layer].top).filter(Boolean).map((shape) => shape.join("×"));
  const kind = ["node", layer.in_place && "part", layer.split && "split", layer.roi && "roi", layer.params.length && "learns", failed && "failed", !reached && !failed && "unreached"];
  const label = `${layer.name}, ${layer.type}${layer.in_place ? ", in place" : ""}${shapes.length ? `, ${shapes.join(" and ")}` : ""}${failed ? ", failed" : ""}`;
  const middle = node.x + node.w / 2;
  const lines = layer.split ? [[`split ×${layer.tops.length}`, ""]]
    : node.h < 32 ? [[layer.name, layer.type]] : [[layer.name, ""], ["", `${layer.type}${shapes.length ? ` ${shapes[0]}` : ""}${shapes.length > 1 ? ` +${shapes.length - 1}` : ""}`]];
  const step = node.h / (lines.length + 1);
  const text = lines.map(([strong, quiet], i) => svg("text", {x: middle, y: node.y + step * (i + 1) + (lines.length > 1 ? (i ? 5.5 : 2.5) : 4)},
    strong ? svg("tspan", {class: "name"}, layer.split ? strong : shortened(strong, node.w - (quiet ? 6.5 * quiet.length + 20 : 16))) : null,
    quiet ? svg("tspan", {class: "type", dx: strong ? 6 : null}, shortened(quiet, node.w - 12)) : null));
  return svg("g", {class: kind.filter(Boolean).join(" "), role: "button", tabindex: -1, "aria-label": label, "data-layer": node.layer,
    onclick: () => choose(node.layer),
    onkeydown: (event) => {
      if (event.key === "Enter" || event.key === " ") choose(node.layer);
      else if (event.key === "ArrowDown") choose(Math.min(node.layer + 1, trace.layers.length - 1));
      else if (event.key === "ArrowUp") choose(Math.max(node.layer - 1, 0));
      else return;
      event.preventDefault();
      event.stopPropagation();
    }},
  svg("title", {}, label), svg("rect", {x: node.x, y: node.y, width: node.w, height: node.h, rx: layer.split ? node.h / 2 : layer.in_place ? 0 : 5}), text);
}

/** A text that fits `width` at 12 pixels, its middle left out if need be. */
function shortened(text, width) {
  const room = Math.max(Math.floor(width / 6.6), 4);
  if (text.length <= room) return text;
  const head = Math.ceil((room - 1) / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (room - 1 - head))}`;
}

function edgePath(edge) {
  const points = edge.points;
  let path = `M${points[0]}`;
  for (let i = 1; i < points.length; i++) {
    const [[x0, y0], [x1, y1]] = [points[i - 1], points[i]];
    path += ` C${x0},${(y0 + y1) / 2} ${x1},${(y0 + y1) / 2} ${x1},${y1}`;
  }
  const shape = shapesOf[edge.from].top[edge.blob];
  return svg("path", {d: path, "marker-end": "url(#arrow)"}, svg("title", {}, `${edge.blob}${shape ? ` ${shapeText(shape)}` : ""}`));
}

function arrowHead() {
  return svg("marker", {id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto"}, svg("path", {d: "M0,0.5 L8,4 L0,7.5 z"}));
}

/** Call moved(dx, dy) in pixels while the element is dragged; a press that hardly moves stays a click. */
function whenDragged(element, moved) {
  let last = null, dragging = false;
  element.addEventListener("pointerdown", (event) => { last = [event.clientX, event.clientY]; dragging = false; });
  element.addEventListener("pointermove", (event) => {
    if (!last || !event.buttons) return;
    const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
    if (!dragging && Math.hypot(dx, dy) < 4) return;
    if (!dragging) element.setPointerCapture(event.pointerId);
    dragging = true;
    last = [event.clientX, event.clientY];
    moved(dx, dy);
  });
  element.addEventListener("pointerup", () => { last = null; });
  element.addEventListener("click", (event) => { if (dragging) event.stopPropagation(); dragging = false; }, true);
}
