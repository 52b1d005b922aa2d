// The net as a graph: boxes for layers, stacked parts for in-place layers, small joints for splits.

function graphView(root, choose) {
  const {width, height, nodes, edges} = trace.graph;
  const boxes = nodes.map((node) => nodeBox(node, choose));
  const world = svg(
    "svg",
    {role: "group", "aria-label": "Layers: the up and down keys move between layers"},
    svg("defs", {}, arrowHead()),
    svg("g", {class: "edges"}, edges.map(edgePath)),
    svg("g", {}, boxes),
  );
  const byLayer = new Map(nodes.map((node, i) => [node.layer, {node, box: boxes[i]}]));
  root.append(world);
  const camera = cameraOn(world, width, height);
  let current = null;
  const here = () => current && camera.centre(current.node, camera.readable());
  root.append(tools(camera, here), finder(choose));
  camera.start(nodes[0]);

  return (state) => {
    current?.box.classList.remove("current");
    current?.box.setAttribute("tabindex", -1);
    current = byLayer.get(state.layer) ?? null;
    if (!current) return;
    current.box.classList.add("current");
    current.box.setAttribute("tabindex", 0);
    if (world.contains(document.activeElement)) current.box.focus({preventScroll: true});
    if (!camera.sees(current.node)) camera.centre(current.node);
  };
}

function tools(camera, here) {
  return el(
    "div",
    {class: "tools"},
    button("+", "Zoom in", () => camera.zoom(1.3)),
    button("−", "Zoom out", () => camera.zoom(1 / 1.3)),
    button("Fit", "Fit the whole net", camera.fit),
    button("Here", "Go to the current layer", here),
  );
}

/** A field that finds a layer by its name. */
function finder(choose) {
  const field = el("input", {
    type: "search",
    list: "layer-names",
    placeholder: "Find a layer",
    "aria-label": "Find a layer",
    onchange: () => {
      const wanted = field.value.toLowerCase();
      const names = trace.layers.map((layer) => layer.name.toLowerCase());
      const found = names.includes(wanted) ? names.indexOf(wanted) : names.findIndex((name) => name.includes(wanted));
      if (!wanted || found < 0) return;
      field.value = "";
      choose(found);
    },
  });
  const names = trace.layers.map((layer) => el("option", {value: layer.name}));
  return el("div", {class: "finder"}, field, el("datalist", {id: "layer-names"}, names));
}
