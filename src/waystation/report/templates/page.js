// Sorting and filtering of tables. The page is whole without it.
"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const valueOf = (row, column) => {
    const given = row.cells[column].dataset.order ?? "";
    return row.cells[column].classList.contains("number") ? Number(given) : given;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const number = head.classList.contains("number");
      const was = head.getAttribute("aria-sort");
      const down = was ? was === "ascending" : number;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => {
        const [left, right] = [valueOf(a, column), valueOf(b, column)];
        return (left < right ? -1 : left > right ? 1 : 0) * (down ? -1 : 1);
      });
      body.append(...rows);
    });
  });
}
for (const find of document.querySelectorAll(".find")) {
  const rows = [...find.parentElement.querySelectorAll("tbody tr")];
  const output = find.querySelector("output");
  find.hidden = false;
  find.querySelector("input").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    output.textContent = wanted ? `${shown} of ${rows.length}` : "";
  });
}
