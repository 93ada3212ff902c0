"use strict";
// Colours and tables of a page. `drawFigures` comes from figures.js, which pages without figures lack.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;

  function show(theme) {
    if (root.dataset.theme === theme) return;
    root.dataset.theme = theme;
    if (window.drawFigures) window.drawFigures();
  }
  const wanted = () => chosen ?? (dark.matches ? "dark" : "light");

  dark.addEventListener("change", () => show(wanted()));
  document.getElementById("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    show(chosen);
  });
  // On paper figures are drawn anew, as wide as the paper: they would keep the width of the screen, and be cut off.
  function print(onPaper) {
    root.classList.toggle("paper", onPaper);
    root.dataset.theme = onPaper ? "light" : wanted();
    if (window.drawFigures) window.drawFigures();
  }
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));

  function sortBy(table, column, head) {
    const falling = head.getAttribute("aria-sort") === "ascending";
    for (const each of head.parentElement.children) each.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const key = row => {
      const cell = row.cells[column];
      if (cell.dataset.value === undefined) return cell.textContent;
      return cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    const names = new Intl.Collator(undefined, {numeric: true});
    const rows = [...table.tBodies[0].rows].map(row => [key(row), row]);
    rows.sort(([one], [other]) => {
      if (one === null || other === null) return (one === null) - (other === null);  // unknown ones stay last
      const order = typeof one === "number" && typeof other === "number" ? one - other : names.compare(one, other);
      return falling ? -order : order;
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => sortBy(table, column, head));
    });
  }
  show(wanted());
})();
