// The best classes of a classifier next to its picture, as bars.

function classesPanel() {
  const view = stage("Image");
  view.look(0, 0, trace.image.width, trace.image.height);
  paintMapped(view, mapOfClass(trace.best_classes[0].class_index));
  const whole = Math.max(1, ...trace.best_classes.map(({score}) => score)); // scores above 1: parts of the greatest
  const rows = trace.best_classes.map(({class: name, class_index: k, score}) =>
    el(
      "li",
      {},
      mapOfClass(k) ? mapButton(view, name, mapOfClass(k)) : el("span", {class: "class-name"}, name),
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

/** A class's name as a switch of its map on the image; another click shows the image alone. */
function mapButton(view, name, found) {
  const show = () => {
    paintMapped(view, view.shownMap === found ? null : found);
    for (const other of item.closest("ol").querySelectorAll(".class-name")) {
      other.setAttribute("aria-pressed", String(other === item && view.shownMap === found));
    }
  };
  const title = `Where the image speaks for ${name}`;
  const pressed = String(view.shownMap === found);
  const item = el("button", {type: "button", class: "link class-name", title, "aria-pressed": pressed, onclick: show}, name);
  return item;
}
