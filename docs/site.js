// Wide tables and formulas scroll inside boxes. The keyboard can reach and scroll these boxes.
document$.subscribe(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .formula")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
});
