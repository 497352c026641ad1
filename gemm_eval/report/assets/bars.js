// Bars: panels below each other, each with an axis of its own. Segments of a bar have a colour by what they are.

const ROW_PX = 27;
const BAR_PX = 15;
const NARROW = 0.36; // of the width: longer names stand above their bars

function setUpBars(figure) {
  const data = JSON.parse(document.getElementById(figure.dataset.bars).textContent);
  const box = make("div", { class: "plot" });
  figure.prepend(...(data.legend.length ? [legendOf(data.legend)] : []), box);

  function draw() {
    const width = box.clientWidth;
    box.replaceChildren(...data.panels.map((panel) => drawPanel(panel, data, width)));
  }

  let drawnWidth = 0;
  new ResizeObserver(() => {
    if (box.clientWidth === drawnWidth) return;
    drawnWidth = box.clientWidth;
    draw();
  }).observe(box);
}

function drawPanel(panel, data, width) {
  const colors = new Map(data.legend.map(({ name, color }) => [name, color]));
  const namesPx = Math.max(...panel.bars.map((bar) => textWidth(bar.name))) + 12;
  const isAbove = namesPx > NARROW * width;
  const left = isAbove ? 0 : namesPx;
  const labelsPx = Math.max(...panel.bars.map((bar) => textWidth(bar.label))) + 14;
  const ends = panel.bars.map((bar) => Math.max(bar.segments.reduce((sum, [, length]) => sum + length, 0), bar.high ?? 0));
  const inner = Math.max(40, width - left - labelsPx);
  const axis = makeAxis({ kind: data.kind, log: false, values: [0, Math.max(...ends)], margin: 0 });
  const at = (value) => left + inner * axis.place(value);
  const rowPx = isAbove ? ROW_PX + 18 : ROW_PX;
  const top = panel.title ? 28 : 6;
  const bottom = top + rowPx * panel.bars.length;
  const height = bottom + 26;

  const canvas = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": panelText(panel, data) });
  const ticks = axis.ticks(Math.max(2, Math.floor(inner / 90))).filter((tick) => tick <= Math.max(...ends));
  if (panel.title) canvas.append(make("text", { class: "name head", x: 0, y: 16 }, panel.title));
  canvas.append(make("path", { class: "grid", d: ticks.map((tick) => `M${at(tick).toFixed(1)} ${top}V${bottom}`).join("") }));
  for (const tick of ticks) {
    const anchor = at(tick) < 20 ? "start" : "middle";
    canvas.append(make("text", { x: at(tick), y: bottom + 17, "text-anchor": anchor }, axis.text(tick)));
  }
  panel.bars.forEach((bar, row) => {
    const from = top + row * rowPx + (isAbove ? 18 : 0) + (ROW_PX - BAR_PX) / 2;
    const middle = from + BAR_PX / 2;
    canvas.append(make("text", { class: "name", x: 0, y: isAbove ? from - 6 : middle + 5 }, bar.name));
    let start = 0;
    for (const [what, length] of bar.segments) {
      const wide = at(start + length) - at(start);
      const drawn = make("rect", { x: at(start), y: from, width: wide, height: BAR_PX, fill: colors.get(what) ?? "" });
      drawn.append(make("title", {}, bar.segments.length > 1 ? `${bar.name}: ${what}, ${axis.text(length)}` : bar.note || what));
      canvas.append(drawn);
      start += length;
    }
    if (bar.low !== null) {
      const [low, high] = [at(bar.low).toFixed(1), at(bar.high).toFixed(1)];
      canvas.append(make("path", { class: "halo", d: `M${low} ${middle}H${high}` }));
      canvas.append(make("path", { class: "span", d: `M${low} ${middle - 5}v10m0 -5H${high}m0 -5v10` }));
    }
    canvas.append(make("text", { class: "name", x: at(Math.max(start, bar.high ?? 0)) + 7, y: middle + 5 }, bar.label));
  });
  return canvas;
}

function panelText(panel, data) {
  return `${panel.title || data.caption}: ${panel.bars.map((bar) => `${bar.name} ${bar.label}`).join("; ")}`;
}

function legendOf(entries) {
  const list = make("ul", { class: "legend" });
  for (const { name, color } of entries) {
    const item = make("li", { class: "keyed" });
    const key = make("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
    key.append(make("rect", { width: 10, height: 10, fill: color }));
    item.append(key, name);
    list.append(item);
  }
  return list;
}
