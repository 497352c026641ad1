// Charts: all points are one path of dots without length, which browsers draw fast and print sharply.

const SVG = "http://www.w3.org/2000/svg";
const CHARACTER_PX = 8;
const ROOM_PX = { top: 30, right: 16, bottom: 50 };
const REACH_PX = { mouse: 24, touch: 48 }; // how far from a point one may point

function make(name, attributes = {}, text = "") {
  const isDrawn = ["svg", "g", "path", "text", "circle", "rect", "title"].includes(name);
  const element = isDrawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

const textWidth = (() => {
  let pen = null;
  return (text, weight = 400) => {
    pen ??= document.createElement("canvas").getContext("2d");
    pen.font = `${weight} 14px ${getComputedStyle(document.body).fontFamily}`;
    return pen.measureText(text).width;
  };
})();

const nameOf = (column) => column.name + (column.unit ? ` (${column.unit})` : "");

function setUpChart(figure) {
  const data = JSON.parse(document.getElementById(figure.dataset.points).textContent);
  const [xs, ys] = data.axes.map((axis) => axis.values);
  const axes = data.axes.map(makeAxis);
  const marked = new Set(data.highlight);
  const order = [...xs.keys()].sort((a, b) => xs[a] - xs[b] || ys[a] - ys[b]);
  const front = order.filter((index) => marked.has(index));

  const box = make("div", { class: "plot" });
  const canvas = make("svg", {
    tabindex: 0,
    role: "application",
    "aria-roledescription": "scatter chart",
    "aria-label": `${data.caption}. ${count(xs.length)} points; arrow keys go from point to point.`,
  });
  const tip = make("div", { class: "tip", role: "status", hidden: "" });
  box.append(canvas, tip);
  figure.prepend(...(front.length ? [legend(data.labels, front.length < xs.length)] : []), box);

  let places = []; // pixels of each point
  let chosen = null;

  function draw() {
    const width = box.clientWidth;
    const height = Math.round(Math.min(460, Math.max(300, 0.6 * width)));
    const rows = axes[1].ticks(Math.max(3, Math.floor(height / 50)));
    const left = 12 + CHARACTER_PX * Math.max(...rows.map((tick) => axes[1].text(tick).length), 1);
    const [inner, bottom] = [width - left - ROOM_PX.right, height - ROOM_PX.bottom];
    const atX = (value) => left + inner * axes[0].place(value);
    const atY = (value) => bottom - (bottom - ROOM_PX.top) * axes[1].place(value);
    const columns = axes[0].ticks(Math.max(3, Math.floor(inner / 72)));
    places = xs.map((value, index) => [atX(value), atY(ys[index])]);

    const grid = rows.map((tick) => `M${left} ${atY(tick).toFixed(1)}h${inner}`);
    grid.push(...columns.map((tick) => `M${atX(tick).toFixed(1)} ${bottom}v5`));
    const labels = [
      ...rows.map((tick) => make("text", { x: left - 8, y: atY(tick) + 5, "text-anchor": "end" }, axes[1].text(tick))),
      ...columns.map((tick) => make("text", { x: atX(tick), y: bottom + 21, "text-anchor": "middle" }, axes[0].text(tick))),
      make("text", { class: "name", x: 0, y: 14 }, nameOf(data.axes[1])),
      make("text", { class: "name", x: width - ROOM_PX.right, y: height - 6, "text-anchor": "end" }, nameOf(data.axes[0])),
    ];
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.replaceChildren(
      make("path", { class: "grid", d: grid.join("") }),
      ...labels,
      make("path", { class: "dots", d: dots(order.filter((index) => !marked.has(index))) }),
      make("path", { class: "line", d: joined() }),
      make("path", { class: "front", d: dots(front) }),
      ...named(width),
    );
    choose(chosen);
  }

  // a front is a step function: what lies between two of its points does no better than one of them
  function joined() {
    return front
      .map((index, rank) => {
        const [x, y] = places[index].map((pixel) => pixel.toFixed(1));
        if (!rank) return `M${x} ${y}`;
        return { line: `L${x} ${y}`, after: `H${x}V${y}`, before: `V${y}H${x}` }[data.joined];
      })
      .join("");
  }

  // names beside a few points, on the side that has room; one that would cover another is left out
  function named(width) {
    const taken = [];
    const found = [];
    for (const [index, name] of data.names) {
      const [x, y] = places[index];
      const wide = textWidth(name) + 14;
      const isLeft = x + wide > width;
      const box = isLeft ? [x - wide, x] : [x, x + wide];
      const isFree = (line) => taken.every(([from, to, at]) => box[1] < from || box[0] > to || Math.abs(at - line) > 17);
      const line = [y - 9, y + 19].find((one) => one > ROOM_PX.top && isFree(one));
      if (line === undefined) continue;
      taken.push([...box, line]);
      found.push(make("text", { class: "name", x: isLeft ? x - 8 : x + 8, y: line, "text-anchor": isLeft ? "end" : "start" }, name));
      found.push(make("circle", { class: "chosen", cx: x, cy: y, r: 6 }));
    }
    return found;
  }

  const pair = (index) => places[index].map((pixel) => pixel.toFixed(1)).join(" ");
  const dots = (indices) => indices.map((index) => `M${pair(index)}h0`).join("");

  function choose(index) {
    if (index !== null && index !== chosen) tip.replaceChildren(describe(data.columns, index));
    chosen = index;
    canvas.querySelector(".ring")?.remove();
    tip.hidden = index === null;
    if (index === null) return;
    const [x, y] = places[index];
    canvas.append(make("circle", { class: "ring", cx: x, cy: y, r: 7 }));
    const room = { right: box.clientWidth - tip.offsetWidth, down: box.clientHeight - tip.offsetHeight };
    const beside = x + 16 <= room.right ? x + 16 : x - 16 - tip.offsetWidth;
    const isBeside = beside >= 0; // else there is no room on either side, and it goes below the chart
    tip.style.left = `${isBeside ? beside : Math.max(0, Math.min(room.right, x - tip.offsetWidth / 2))}px`;
    tip.style.top = `${isBeside ? Math.max(0, Math.min(room.down, y - tip.offsetHeight / 2)) : box.clientHeight}px`;
  }

  function nearest(event) {
    const frame = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    let [found, best] = [null, (REACH_PX[event.pointerType] ?? REACH_PX.touch) ** 2];
    places.forEach((place, index) => {
      const distance = (place[0] - x) ** 2 + (place[1] - y) ** 2;
      if (distance < best || (distance === best && marked.has(index))) [found, best] = [index, distance];
    });
    return found;
  }

  const moves = {
    ArrowRight: () => step(order, 1),
    ArrowLeft: () => step(order, -1),
    ArrowUp: () => step(front.length ? front : order, 1),
    ArrowDown: () => step(front.length ? front : order, -1),
    Home: () => order[0],
    End: () => order.at(-1),
    Escape: () => null,
  };

  function step(indices, by) {
    const rank = indices.indexOf(chosen);
    if (rank >= 0) return indices[Math.min(indices.length - 1, Math.max(0, rank + by))];
    const next = indices.find((index) => chosen === null || xs[index] >= xs[chosen]);
    return next ?? indices.at(-1);
  }

  canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && choose(nearest(event)));
  canvas.addEventListener("pointerdown", (event) => choose(nearest(event)));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && choose(null));
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && choose(front[0] ?? order[0] ?? null));
  canvas.addEventListener("blur", () => choose(null));
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in moves) || !order.length) return;
    event.preventDefault();
    choose(moves[event.key]());
  });

  let drawnWidth = 0;
  new ResizeObserver(() => {
    if (box.clientWidth === drawnWidth) return; // its height follows from its width
    drawnWidth = box.clientWidth;
    draw();
  }).observe(box);
}

function describe(columns, index) {
  const list = make("dl");
  for (const column of columns) {
    const text = column.texts[index];
    list.append(make("dt", {}, column.name), make("dd", {}, text && column.unit ? `${text} ${column.unit}` : text || "–"));
  }
  return list;
}

function legend([markedLabel, otherLabel], hasOthers) {
  const list = make("ul", { class: "legend" });
  list.append(make("li", { class: "marked" }, markedLabel), ...(hasOthers ? [make("li", {}, otherLabel)] : []));
  return list;
}
