// Units: what is counted in them, and how many of the first one a unit is. Numbers of a column are in one of them.

const FAMILIES = [
  { what: "a time", example: "5 ms", units: { us: 1, µs: 1, μs: 1, ns: 1e-3, ms: 1e3, s: 1e6, min: 6e7, h: 3.6e9 } },
  {
    what: "a number of bytes",
    example: "2 MiB",
    units: {
      B: 1, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40,
      byte: 1, bytes: 1,
    },
  },
  {
    what: "a bandwidth",
    example: "400 GB/s",
    units: {
      "GB/s": 1, "TB/s": 1e3, "MB/s": 1e-3, "KB/s": 1e-6, "B/s": 1e-9,
      "GiB/s": 2 ** 30 / 1e9, "TiB/s": 2 ** 40 / 1e9, "MiB/s": 2 ** 20 / 1e9,
    },
  },
  { what: "a rate", example: "90 TFLOP/s", units: { "TFLOP/s": 1, "GFLOP/s": 1e-3, "PFLOP/s": 1e3 } },
  { what: "an energy", example: "3 mJ", units: { pJ: 1, nJ: 1e3, uJ: 1e6, µJ: 1e6, μJ: 1e6, mJ: 1e9, J: 1e12, kJ: 1e15 } },
  { what: "a power", example: "250 W", units: { W: 1, mW: 1e-3, kW: 1e3 } },
  { what: "a clock", example: "1.5 GHz", units: { GHz: 1, MHz: 1e-3, kHz: 1e-6, Hz: 1e-9 } },
  { what: "an area", example: "200 mm2", units: { mm2: 1, "mm²": 1, cm2: 100, "cm²": 100 } },
  { what: "a share", example: "50 %", units: { "%": 1, frac: 100 } },
];

function unitOf(text) {
  const wanted = text.toLowerCase();
  for (const family of FAMILIES) {
    const name = Object.keys(family.units).find((unit) => unit.toLowerCase() === wanted);
    if (name !== undefined) return { family, size: family.units[name] };
  }
  return null;
}

// What is drawn on an axis, by the kind of its values: units from the largest on.
const SCALES = {
  time: [[1e6, "s"], [1e3, "ms"], [1, "us"], [1e-3, "ns"]],
  capacity: [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]],
  bytes: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "KB"], [1, "B"]],
  energy: [[1e12, "J"], [1e9, "mJ"], [1e6, "uJ"], [1e3, "nJ"], [1, "pJ"]],
};

function scaleFor(kind, value) {
  const scales = SCALES[kind];
  return scales && value ? scales.find(([size]) => Math.abs(value) >= size * 0.9999) ?? scales.at(-1) : null;
}
