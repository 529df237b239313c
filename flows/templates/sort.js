for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), body = head.closest("table").tBodies[0], place = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    const value = row => row.cells[place].dataset.value ?? row.cells[place].textContent;
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)], [p, q] = [Number(x), Number(y)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const less = Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y) : p - q;
      return down ? -less : less;
    };
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...[...body.rows].sort(order));
  });
}
