"use strict";
const table = document.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
const search = document.getElementById("search"), wrong = document.getElementById("wrong"), count = document.getElementById("count");

// The text of a cell, or its number where the cell has one.
const value = (row, column) => {
  const cell = row.cells[column];
  return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
};

const compare = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b);

const filter = () => {
  const wanted = search.value.toLowerCase();
  let shown = 0;
  for (const row of rows) {
    row.hidden = (wrong.checked && row.classList.contains("exact")) || !row.textContent.toLowerCase().includes(wanted);
    shown += row.hidden ? 0 : 1;
  }
  count.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} sentences`;
};

table.tHead.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const head = button.parentElement, ascending = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const keys = new Map(rows.map((row) => [row, value(row, head.cellIndex)]));
  rows.sort((a, b) => (ascending ? 1 : -1) * compare(keys.get(a), keys.get(b)));
  body.append(...rows);
});
search.addEventListener("input", filter);
wrong.addEventListener("change", filter);
document.getElementById("controls").hidden = false;
filter();
