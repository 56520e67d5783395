// On a phone a row is a block (custom.css); there each cell needs the head of its column.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.docutils")) {
    const heads = Array.from(table.querySelectorAll("thead th"), (head) => head.textContent);
    for (const row of table.querySelectorAll("tbody tr")) {
      Array.from(row.cells).forEach((cell, i) => (cell.dataset.head = heads[i] || ""));
    }
  }
});
