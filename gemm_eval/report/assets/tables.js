// Tables: a header sorts up, then down, then gives the first order back. Rows that are equal keep their order, so
// sorting by one column and then by another does what one expects. Missing values are last, up and down.

function setUpTable(figure) {
  const body = figure.querySelector("tbody");
  const heads = [...figure.querySelectorAll("thead th")];
  const original = [...body.rows];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
      heads.forEach((other) => other.setAttribute("aria-sort", other === head ? next : "none"));
      body.append(...(next === "none" ? original : sorted([...body.rows], column, head.dataset.kind, next)));
    });
  });
  const filter = figure.querySelector(".filter");
  if (filter) setUpFilter(filter, heads, original);
}

function sorted(rows, column, kind, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  const compare = kind === "number" ? (a, b) => a - b : words.compare;
  const keyed = rows.map((row) => ({ row, key: keyOf(row.cells[column], kind) }));
  keyed.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    return sign * compare(a.key, b.key) || 0; // equal infinities differ by NaN
  });
  return keyed.map((item) => item.row);
}

function keyOf(cell, kind) {
  const text = cell.dataset.v ?? cell.textContent;
  if (text === "") return null;
  if (kind !== "number") return text;
  return text.endsWith("inf") ? (text.startsWith("-") ? -Infinity : Infinity) : Number(text.replaceAll(",", ""));
}

function setUpFilter(filter, heads, rows) {
  const input = filter.querySelector("input");
  const output = filter.querySelector("output");
  let table = null; // read when first needed: most tables are never filtered
  let texts = null;
  const say = (text, isWrong) => {
    output.value = text;
    output.classList.toggle("wrong", isWrong);
    input.setAttribute("aria-invalid", isWrong);
  };
  const apply = () => {
    table ??= columnsOf(heads);
    texts ??= rows.map((row) => [...row.cells].map((cell) => cell.textContent).join("\n").toLowerCase());
    let holds = () => true;
    try {
      if (input.value.trim()) holds = parseFilter(input.value, table);
    } catch (error) {
      if (!(error instanceof NotUnderstood)) throw error;
      return say(error.message, true); // the rows stay as they are
    }
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !holds({ cells: row.cells, text: texts[index] });
      shown += !row.hidden;
    });
    return say(shown < rows.length ? `${count(shown)} of ${count(rows.length)} rows` : `${count(shown)} rows`, false);
  };
  filter.hidden = false;
  output.value = `${count(rows.length)} rows`;
  input.addEventListener("input", apply);
  if (input.value) apply(); // the browser keeps what was typed when a page is loaded again
}
