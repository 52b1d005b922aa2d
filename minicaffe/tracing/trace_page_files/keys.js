// The keys of the whole page, and their list, which "?" or a button opens.

/** Call the function of a key, unless the focused control or the list of keys uses it itself. keys: {key: function}. */
function pressKeys(keys, signal) {
  const press = (event) => {
    const own =
      document.querySelector("dialog[open]") ||
      event.target.closest("input, select, textarea, summary") ||
      (event.key === " " && event.target.closest("button, a, [role=button]"));
    if (own || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  };
  document.addEventListener("keydown", press, {signal});
}

/** groups(): {title: [[keys, what they do]]}; those that are null are left out. */
function offerKeys(opener, groups) {
  opener.addEventListener("click", () => showKeys(groups()));
  document.addEventListener("keydown", (event) => {
    const writes = event.target.closest("input:not([type=range], [type=checkbox]), textarea, select, dialog");
    if (event.key !== "?" || writes) return;
    event.preventDefault();
    showKeys(groups());
  });
}

function showKeys(groups) {
  const row = ([keys, what]) =>
    el("div", {}, el("dt", {}, keys.split(" ").map((key) => el("kbd", {}, key))), el("dd", {}, what));
  const shown = Object.entries(groups).filter(([, rows]) => rows);
  const parts = shown.flatMap(([title, rows]) => [el("h3", {}, title), el("dl", {}, rows.map(row))]);
  const close = el("button", {type: "button", onclick: () => list.close()}, "Close");
  const head = el("div", {class: "row head"}, el("h2", {}, "Keys"), close);
  const list = el("dialog", {class: "keys", "aria-label": "Keys", onclose: () => list.remove()}, head, parts);
  document.body.append(list);
  list.showModal();
}
