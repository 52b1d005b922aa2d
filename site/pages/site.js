// Scrollable boxes can be scrolled with the keys. The buttons of each block of code have their own names. No option is broken.
document$.subscribe(() => setTimeout(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .formula")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
  }
  for (const head of document.querySelectorAll("th:empty")) head.replaceWith(document.createElement("td")) // Markdown has no table without heads
  for (const code of document.querySelectorAll("code")) wrapOptions(code)
  document.querySelectorAll(".md-code__nav").forEach((nav, i) => nav.setAttribute("aria-label", `Code ${i + 1}`))
}))

function wrapOptions(code) {
  const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT)
  const found = []
  while (texts.nextNode()) if (/(^|\s)--[a-z]/.test(texts.currentNode.data)) found.push(texts.currentNode)
  for (const text of found) {
    const parts = text.data.split(/(?<=^|\s)(--[a-z][\w-]*)/)
    text.replaceWith(...parts.map((part, i) => (i % 2 ? Object.assign(document.createElement("span"), {className: "option", textContent: part}) : part)))
  }
}
