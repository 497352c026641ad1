const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const count = (number) => number.toLocaleString("en-US");

// A drawing wider than its place is shown whole, and at its own size where that is asked for.
function setUpDrawing(figure) {
  const box = figure.querySelector(".scroll");
  const wide = Number(box.querySelector("svg").getAttribute("width"));
  const button = make("button", { type: "button", hidden: "", "aria-pressed": "false" }, "Enlarge");
  box.after(button);
  button.addEventListener("click", () => {
    const isLarge = figure.classList.toggle("enlarged");
    button.textContent = isLarge ? "Fit to the page" : "Enlarge";
    button.setAttribute("aria-pressed", isLarge);
  });
  new ResizeObserver(() => (button.hidden = wide <= box.clientWidth)).observe(box);
}

document.querySelectorAll("figure.drawing").forEach(setUpDrawing);
document.querySelectorAll("figure.table").forEach(setUpTable);
document.querySelectorAll("figure.chart").forEach(setUpChart);
document.querySelectorAll("figure.bars").forEach(setUpBars);
