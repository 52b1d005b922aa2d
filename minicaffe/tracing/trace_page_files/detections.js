// The detections, drawn on the image.

function detectionsPanel() {
  const view = stage("Image");
  const least = Math.min(...trace.detections.map((found) => found.score), 1);
  const field = el("input", {
    type: "range",
    min: Math.floor(least * 100),
    max: 100,
    value: Math.floor(least * 100),
    "aria-label": "Lowest score, in percent",
  });
  const output = el("output", {});
  const list = el("ol", {class: "detections"});
  const draw = () => {
    const kept = trace.detections.filter((found) => found.score * 100 >= field.value);
    output.textContent = `score at least ${number(field.value / 100, 2)}: ${kept.length} of ${trace.detections.length}`;
    view.draw(kept.map(detectionBox), kept.map(detectionLabel));
    list.replaceChildren(
      ...kept.map((found) => {
        const box = el("span", {class: "quiet mono"}, pair(found.box, 4));
        return el("li", {}, el("strong", {}, found.class), ` ${found.score.toFixed(3)} `, box);
      }),
    );
  };
  field.addEventListener("input", draw);
  view.look(0, 0, trace.image.width, trace.image.height);
  photoCanvas().then((canvas) => view.paint(canvas, 0, 0, trace.image.width, trace.image.height));
  draw();
  return [
    el(
      "div",
      {class: "head"},
      el("h2", {}, "Detections"),
      el("p", {class: "quiet"}, "of the net's last pass; boxes in pixels of its input"),
    ),
    el("section", {class: "card result"}, el("label", {class: "slider"}, field, output), view.figure, list),
  ];
}

const shownBox = (found) => found.box.map((v) => v / trace.image.scale);

const detectionBox = (found) =>
  svg(
    "g",
    {class: "detection", "data-class": found.class},
    box(...shownBox(found), {class: "halo"}),
    box(...shownBox(found), {class: "chosen"}),
  );

/** Class and score above the box, or in it if there is no room above. */
function detectionLabel(found) {
  const [x, y] = shownBox(found);
  const text = `${found.class} ${found.score.toFixed(2)}`;
  const size = Math.max(trace.image.width / 42, 7);
  const top = y > size * 1.4 ? y - size * 1.3 : y;
  return [
    svg("rect", {x, y: top, width: text.length * size * 0.58 + size * 0.6, height: size * 1.3, class: "label"}),
    svg("text", {x: x + size * 0.3, y: top + size * 0.97, "font-size": size, class: "label-text"}, text),
  ];
}
