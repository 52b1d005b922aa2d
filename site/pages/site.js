// A table that scrolls can be scrolled with the keys.
document$.subscribe(() => setTimeout(() => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0
  }
}))
