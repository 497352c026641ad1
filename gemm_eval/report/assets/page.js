"use strict";
(() => {
  const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const count = (number) => number.toLocaleString("en-US");

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
    if (filter) setUpFilter(filter, original);
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

  function setUpFilter(filter, rows) {
    const input = filter.querySelector("input");
    const output = filter.querySelector("output");
    let texts = null; // read when first needed: most tables are never filtered
    const apply = () => {
      texts ??= rows.map((row) => [...row.cells].map((cell) => cell.textContent).join("\n").toLowerCase());
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, index) => {
        row.hidden = !wanted.every((word) => texts[index].includes(word));
        shown += !row.hidden;
      });
      output.value = shown < rows.length ? `${count(shown)} of ${count(rows.length)} rows` : `${count(shown)} rows`;
    };
    filter.hidden = false;
    output.value = `${count(rows.length)} rows`;
    input.addEventListener("input", apply);
    if (input.value) apply(); // the browser keeps what was typed when a page is loaded again
  }

  // Axes: a value's place is a fraction of the axis, 0 to 1.

  const superscript = (number) => [...String(number)].map((sign) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign] ?? "⁻").join("");

  function tickText(value) {
    const size = Math.abs(value);
    if (size === 0 || (size >= 1e-3 && size < 1e6)) return value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
    const [digits, exponent] = value.toExponential().split("e").map(Number);
    const rounded = Number(digits.toPrecision(6));
    return (rounded === 1 ? "" : `${rounded}×`) + `10${superscript(exponent)}`;
  }

  function makeAxis(axis) {
    const to = axis.log ? Math.log10 : (value) => value;
    let [low, high] = [Infinity, -Infinity];
    for (const value of axis.values) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (low > high) [low, high] = [1, 10]; // no points
    let [from, until] = [to(low), to(high)];
    const margin = 0.04 * (until - from) || (axis.log ? 0.2 : 0.1 * Math.abs(from) || 1);
    from = !axis.log && from >= 0 ? Math.max(0, from - margin) : from - margin;
    until += margin;
    const place = (value) => (to(value) - from) / (until - from);
    const ends = axis.log ? [10 ** from, 10 ** until] : [from, until];
    return { place, ticks: (most) => (axis.log && logTicks(...ends, most)) || linearTicks(...ends, most) };
  }

  function linearTicks(low, high, most) {
    const raw = (high - low) / most;
    const decade = 10 ** Math.floor(Math.log10(raw));
    const step = decade * [1, 2, 5, 10].find((factor) => factor * decade >= raw * 0.999);
    const found = [];
    for (let index = Math.ceil(low / step); index * step <= high; index += 1) found.push(index * step);
    return found;
  }

  function logTicks(low, high, most) {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    for (const [factors, stride] of [[[1, 2, 5], 1], [[1, 3], 1], [[1], 1], [[1], 2], [[1], 3], [[1], 6]]) {
      const found = [];
      for (let power = Math.ceil(first / stride) * stride; power <= last; power += stride) {
        found.push(...factors.map((factor) => Number(`${factor}e${power}`)).filter((tick) => tick >= low && tick <= high));
      }
      if (found.length <= most) return found.length >= 2 ? found : null; // a short axis: evenly spaced values instead
    }
    return null;
  }

  // Charts: all points are one path of dots without length, which browsers draw fast and print sharply.

  const SVG = "http://www.w3.org/2000/svg";
  const CHARACTER_PX = 8;
  const ROOM_PX = { top: 30, right: 16, bottom: 50 };
  const REACH_PX = { mouse: 24, touch: 48 }; // how far from a point one may point

  function make(name, attributes = {}, text = "") {
    const isDrawn = ["svg", "g", "path", "text", "circle"].includes(name);
    const element = isDrawn ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  }

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
      const left = 12 + CHARACTER_PX * Math.max(...rows.map((tick) => tickText(tick).length), 1);
      const [inner, bottom] = [width - left - ROOM_PX.right, height - ROOM_PX.bottom];
      const atX = (value) => left + inner * axes[0].place(value);
      const atY = (value) => bottom - (bottom - ROOM_PX.top) * axes[1].place(value);
      const columns = axes[0].ticks(Math.max(3, Math.floor(inner / 64)));
      places = xs.map((value, index) => [atX(value), atY(ys[index])]);

      const grid = rows.map((tick) => `M${left} ${atY(tick).toFixed(1)}h${inner}`);
      grid.push(...columns.map((tick) => `M${atX(tick).toFixed(1)} ${bottom}v5`));
      const labels = [
        ...rows.map((tick) => make("text", { x: left - 8, y: atY(tick) + 5, "text-anchor": "end" }, tickText(tick))),
        ...columns.map((tick) => make("text", { x: atX(tick), y: bottom + 21, "text-anchor": "middle" }, tickText(tick))),
        make("text", { class: "name", x: 0, y: 14 }, nameOf(data.axes[1])),
        make("text", { class: "name", x: width - ROOM_PX.right, y: height - 6, "text-anchor": "end" }, nameOf(data.axes[0])),
      ];
      canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
      canvas.replaceChildren(
        make("path", { class: "grid", d: grid.join("") }),
        ...labels,
        make("path", { class: "dots", d: dots(order.filter((index) => !marked.has(index))) }),
        make("path", { class: "line", d: front.map((index, rank) => `${rank ? "L" : "M"}${pair(index)}`).join("") }),
        make("path", { class: "front", d: dots(front) }),
      );
      choose(chosen);
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

  document.querySelectorAll("figure.table").forEach(setUpTable);
  document.querySelectorAll("figure.chart").forEach(setUpChart);
})();
