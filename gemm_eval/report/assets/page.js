const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const count = (number) => number.toLocaleString("en-US");

// A drawing wider than its place scrolls at its own size, so that its words stay readable; a button fits it to the page.
function setUpDrawing(figure) {
  const box = figure.querySelector(".scroll");
  const wide = Number(box.querySelector("svg").getAttribute("width"));
  const button = make("button", { type: "button", hidden: "", "aria-pressed": "false" }, "Fit to the page");
  box.after(button);
  button.addEventListener("click", () => {
    const isFitted = figure.classList.toggle("fitted");
    button.textContent = isFitted ? "Enlarge" : "Fit to the page";
    button.setAttribute("aria-pressed", isFitted);
  });
  new ResizeObserver(() => (button.hidden = wide <= box.clientWidth)).observe(box);
}

document.querySelectorAll("figure.drawing").forEach(setUpDrawing);
document.querySelectorAll("figure.table").forEach(setUpTable);
document.querySelectorAll("figure.chart").forEach(setUpChart);
document.querySelectorAll("figure.bars").forEach(setUpBars);
