// Axes: a value's place is a fraction of the axis, 0 to 1.

const superscript = (number) => [...String(number)].map((sign) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign] ?? "⁻").join("");

function tickText(value, kind) {
  const scale = scaleFor(kind, value);
  if (scale) return `${(value / scale[0]).toLocaleString("en-US", { maximumSignificantDigits: 4 })} ${scale[1]}`;
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
  const margin = axis.margin ?? (0.04 * (until - from) || (axis.log ? 0.2 : 0.1 * Math.abs(from) || 1));
  from = !axis.log && from >= 0 ? Math.max(0, from - margin) : from - margin;
  until += margin;
  const place = (value) => (to(value) - from) / (until - from);
  const ends = axis.log ? [10 ** from, 10 ** until] : [from, until];
  const [unit] = scaleFor(axis.kind, ends[1]) ?? [1]; // round numbers are those of the unit
  const evenly = (most) => linearTicks(ends[0] / unit, ends[1] / unit, most).map((tick) => tick * unit);
  const decades = axis.kind === "capacity" ? powersOfTwo : logTicks;
  return { place, text: (value) => tickText(value, axis.kind), ticks: (most) => (axis.log && decades(...ends, most)) || evenly(most) };
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

function powersOfTwo(low, high, most) {
  const [first, last] = [Math.ceil(Math.log2(low)), Math.floor(Math.log2(high))];
  const stride = Math.max(1, Math.ceil((last - first + 1) / most));
  const found = [];
  for (let power = first; power <= last; power += stride) found.push(2 ** power);
  return found.length >= 2 ? found : null;
}
