// The best classes of a classifier next to its picture, as bars.

function classesPanel() {
  const view = stage("Image");
  view.look(0, 0, trace.image.width, trace.image.height);
  photoCanvas().then((canvas) => view.paint(canvas, 0, 0, trace.image.width, trace.image.height));
  const whole = Math.max(1, ...trace.best_classes.map(({score}) => score)); // scores above 1: parts of the greatest
  const rows = trace.best_classes.map(({class: name, score}) =>
    el(
      "li",
      {},
      el("span", {class: "class-name"}, name),
      el("span", {class: "mono"}, score.toFixed(4)),
      el("span", {class: "class-bar", style: `width: ${(100 * Math.max(score, 0)) / whole}%`, "aria-hidden": "true"}),
    ),
  );
  return [
    el("div", {class: "head"}, el("h2", {}, "Classes"), el("p", {class: "quiet"}, "of the net's last pass, the best first")),
    el(
      "section",
      {class: "card result class-result"},
      view.figure,
      el("ol", {class: "classes", "aria-label": "The best classes"}, rows),
      saveButtons(() => view.figure, "the picture"),
    ),
  ];
}
