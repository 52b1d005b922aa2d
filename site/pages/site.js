// Scrollable boxes can be scrolled with the keys, and the buttons of each block of code have their own names.
document$.subscribe(() => setTimeout(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .formula")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
  }
  for (const head of document.querySelectorAll("th:empty")) head.replaceWith(document.createElement("td")) // Markdown has no table without heads
  document.querySelectorAll(".md-code__nav").forEach((nav, i) => nav.setAttribute("aria-label", `Code ${i + 1}`))
}))
