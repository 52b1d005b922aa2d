// A layer's box and a blob's edge in the graph.

function nodeBox(node, choose) {
  const layer = trace.layers[node.layer];
  const reached = Object.keys(stepsOf[node.layer]).length > 0;
  const failed = trace.error?.layer === node.layer;
  const shapes = Object.values(shapesOf[node.layer].top)
    .filter(Boolean)
    .map((shape) => shape.join("×"));
  const kind = [
    "node",
    layer.in_place && "part",
    layer.split && "split",
    layer.roi && "roi",
    layer.params.length && "learns",
    failed && "failed",
    !reached && !failed && "unreached",
  ];
  const label = [layer.name, layer.type, layer.in_place && "in place", shapes.join(" and "), failed && "failed"]
    .filter(Boolean)
    .join(", ");
  const middle = node.x + node.w / 2;
  const lines = layer.split
    ? [[`split ×${layer.tops.length}`, ""]]
    : node.h < 32
      ? [[layer.name, layer.type]]
      : [
          [layer.name, ""],
          ["", `${layer.type}${shapes.length ? ` ${shapes[0]}` : ""}${shapes.length > 1 ? ` +${shapes.length - 1}` : ""}`],
          ...(layer.details ? [["", layer.details]] : []),
        ];
  const step = node.h / (lines.length + 1);
  const roomFor = (quiet) => node.w - (quiet ? 6.5 * quiet.length + 20 : 16);
  const text = lines.map(([strong, quiet], i) =>
    svg(
      "text",
      {x: middle, y: node.y + step * (i + 1) + (lines.length > 1 ? (i ? 5.5 : 2.5) : 4)},
      strong ? svg("tspan", {class: "name"}, layer.split ? strong : shortened(strong, roomFor(quiet))) : null,
      quiet ? svg("tspan", {class: "type", dx: strong ? 6 : null}, shortened(quiet, node.w - 12)) : null,
    ),
  );
  return svg(
    "g",
    {
      class: kind.filter(Boolean).join(" "),
      role: "button",
      tabindex: -1,
      "aria-label": label,
      "data-layer": node.layer,
      onclick: () => choose(node.layer),
      onkeydown: (event) => {
        if (event.key === "Enter" || event.key === " ") choose(node.layer);
        else if (event.key === "ArrowDown") choose(Math.min(node.layer + 1, trace.layers.length - 1));
        else if (event.key === "ArrowUp") choose(Math.max(node.layer - 1, 0));
        else return;
        event.preventDefault();
        event.stopPropagation();
      },
    },
    svg("title", {}, label),
    svg("rect", {x: node.x, y: node.y, width: node.w, height: node.h, rx: layer.split ? node.h / 2 : layer.in_place ? 0 : 5}),
    text,
  );
}

/** A text that fits `width` at 12 pixels, if necessary without its middle. */
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
    path += ` C${x0},${(y0 + y1) / 2} ${x1},${(y0 + y1) / 2} ${x1},${y1}`; // leaves and arrives vertically
  }
  const shape = shapesOf[edge.from].top[edge.blob];
  const title = shape ? `${edge.blob} ${shapeText(shape)}` : edge.blob;
  return svg("path", {d: path, "marker-end": "url(#arrow)"}, svg("title", {}, title));
}

function arrowHead() {
  return svg(
    "marker",
    {id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto"},
    svg("path", {d: "M0,0.5 L8,4 L0,7.5 z"}),
  );
}
