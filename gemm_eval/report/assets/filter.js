// Filter: "num_cores = 64 and latency < 5 ms". Comparisons of columns with values or with other columns, and, or, not,
// parentheses; any other word must be in the text of a row. What is not understood is said and filters nothing.

const SIGNS = /<=|>=|!=|<>|==|[=<>≤≥≠]/y;
const SAME_SIGN = { "≤": "<=", "≥": ">=", "≠": "!=", "<>": "!=", "==": "=" };
const NUMBER = /[-+]?(?:\d[\d,_]*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?(?![\d.])/iy;
const UNIT = /\s*([a-zµμ]+2?²?(?:\/s)?|%)(?![\w/])/iy;
const WORD = /(?:[^\s()<>=!≤≥≠"']|!(?!=))+/y;
const QUOTED = /"([^"]*)"|'([^']*)'/y;
const LINKS = new Set(["and", "or", "not", "&&", "||", "!"]);
const SAME_FRACTION = 1e-9;

class NotUnderstood extends Error {}

// Columns as expressions know them: by heading, by the name in files, and by either without its unit or with it.
function columnsOf(heads) {
  const columns = heads.map((head, index) => {
    const heading = head.dataset.heading;
    const name = head.dataset.name ?? heading;
    return { index, heading, name, kind: head.dataset.kind, unit: head.dataset.unit ?? "", isScaled: "scaled" in head.dataset };
  });
  const byAlias = new Map();
  const add = (alias, column, hasUnit) => {
    const key = plainName(alias);
    const found = byAlias.get(key) ?? [];
    if (!found.some((one) => one.column === column)) byAlias.set(key, [...found, { column, hasUnit }]);
  };
  for (const column of columns) add(column.name, column, !column.isScaled || column.name !== column.heading);
  for (const column of columns) {
    if (!byAlias.has(plainName(column.heading))) add(column.heading, column, !column.isScaled);
  }
  const whole = new Set(byAlias.keys());
  for (const column of columns) {
    const short = plainName(column.name).replace(/_(us|bytes|pj|gb_per_s|tflop_per_s|mm2|ghz|hz|frac|w)$/, "");
    for (const [alias, hasUnit] of [[short, false], [`${column.heading}_${column.unit}`, true]]) {
      if (!whole.has(plainName(alias))) add(alias, column, hasUnit);
    }
  }
  return { columns, byAlias, aliases: [...byAlias.keys()].filter(Boolean).sort((a, b) => b.length - a.length) };
}

const plainName = (text) => text.toLowerCase().trim().replace(/[\s_]+/g, "_");

function parseFilter(text, table) {
  let at = 0;

  const match = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at = pattern.lastIndex;
    return found;
  };
  const skip = () => match(/\s*/y);
  const peek = () => {
    const before = at;
    skip();
    const word = match(/[()]|&&|\|\||!(?!=)/y)?.[0] ?? match(WORD)?.[0] ?? "";
    at = before;
    return word.toLowerCase();
  };
  const take = (...wanted) => {
    const word = peek();
    if (!wanted.includes(word)) return false;
    skip();
    at += word.length;
    return true;
  };

  function any() {
    const parts = [all()];
    while (take("or", "||")) parts.push(all());
    return parts.length > 1 ? (row) => parts.some((part) => part(row)) : parts[0];
  }

  function all() {
    const parts = [one()];
    for (;;) {
      const isLinked = take("and", "&&");
      skip();
      if (!isLinked && (at >= text.length || [")", "or", "||"].includes(peek()))) break;
      parts.push(one());
    }
    return parts.length > 1 ? (row) => parts.every((part) => part(row)) : parts[0];
  }

  function one() {
    skip();
    if (take("not", "!")) {
      const inner = one();
      return (row) => !inner(row);
    }
    if (take("(")) {
      const inner = any();
      if (!take(")")) throw new NotUnderstood("a ) is missing");
      return inner;
    }
    return comparison();
  }

  function comparison() {
    const from = at;
    let left = operand(null);
    skip();
    let sign = match(SIGNS)?.[0];
    if (!sign) {
      at = from;
      return word();
    }
    const tests = [];
    while (sign) {
      skip();
      if (at >= text.length) throw new NotUnderstood(`a value is missing after ${sign}`);
      const right = operand(left);
      tests.push(compared(left, SAME_SIGN[sign] ?? sign, right, table));
      left = right;
      skip();
      sign = match(SIGNS)?.[0];
    }
    return (row) => tests.every((test) => test(row));
  }

  function operand(before) {
    const quoted = match(QUOTED);
    if (quoted) return { text: quoted[1] ?? quoted[2], said: quoted[0] };
    const isOfWords = before?.column?.kind === "text";
    if (!isOfWords) {
      const named = columnHere(before === null);
      if (named) return named;
      const number = numberHere();
      if (number) return number;
    }
    const found = match(WORD);
    if (!found) {
      const next = text.slice(at, at + 1);
      throw new NotUnderstood(next ? `${next} is not understood here` : "a word or a comparison is missing at the end");
    }
    if (before && LINKS.has(found[0].toLowerCase())) throw new NotUnderstood(`a value is missing before ${found[0]}`);
    return { text: found[0], said: found[0] };
  }

  function columnHere(isFirst) {
    const rest = text.slice(at);
    for (const alias of table.aliases) {
      const pattern = alias.split("_").map((part) => part.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")).join("[\\s_]+");
      const end = isFirst ? "(?=\\s*(?:[=<>≤≥≠]|!=))" : "(?![\\p{L}\\p{N}_])";
      const found = new RegExp(`^${pattern}${end}`, "iu").exec(rest);
      if (!found) continue;
      const known = table.byAlias.get(alias);
      if (known.length > 1) {
        const names = known.map(({ column }) => column.name).join(" or ");
        throw new NotUnderstood(`${found[0]} may be ${names}: write one of them`);
      }
      at += found[0].length;
      return { ...known[0], said: found[0] };
    }
    return null;
  }

  function numberHere() {
    const before = at;
    const found = match(NUMBER);
    if (!found) return null;
    const after = at;
    const unit = match(UNIT);
    if (unit && LINKS.has(unit[1].toLowerCase())) at = after;
    else if (unit) {
      const known = unitOf(unit[1]);
      if (known) return { number: plainNumber(found[0]), unit: known, said: text.slice(before, at) };
      if (/^\s/.test(unit[0])) at = after; // the next word
    }
    if (at === after && (at >= text.length || /[\s()<>=!≤≥≠]/.test(text[at]))) {
      return { number: plainNumber(found[0]), said: found[0] };
    }
    at = before;
    return null;
  }

  function word() {
    const quoted = match(QUOTED);
    const said = quoted ? quoted[1] ?? quoted[2] : match(WORD)?.[0];
    if (said === undefined) {
      const next = text.slice(at, at + 1);
      throw new NotUnderstood(next ? `${next} is not understood here` : "a word or a comparison is missing at the end");
    }
    if (!quoted && LINKS.has(said.toLowerCase())) throw new NotUnderstood(`${said} stands between two conditions`);
    const wanted = said.toLowerCase();
    return (row) => row.text.includes(wanted);
  }

  const found = any();
  skip();
  if (at < text.length) throw new NotUnderstood(`${text.slice(at, at + 20)} is not understood here`);
  return found;
}

const plainNumber = (text) => Number(text.replace(/[,_]/g, ""));

function compared(left, sign, right, table) {
  if (!left.column && right.column) {
    const turned = { "<": ">", ">": "<", "<=": ">=", ">=": "<=" }[sign] ?? sign;
    return compared(right, turned, left, table);
  }
  if (!left.column) throw new NotUnderstood(noColumn(left.text === undefined ? right : left, table));
  const { column } = left;
  if (column.kind === "text") {
    if (sign !== "=" && sign !== "!=") throw new NotUnderstood(`${left.said} holds words: use = or !=`);
    const wanted = (right.text ?? right.said).toLowerCase();
    return (row) => (row.cells[column.index].textContent.toLowerCase() === wanted) === (sign === "=");
  }
  const holds = (value, limit, isShownSame) => {
    const isSame = isShownSame || Math.abs(value - limit) <= SAME_FRACTION * Math.abs(limit);
    if (sign === "=" || sign === "!=") return isSame === (sign === "=");
    return isSame ? sign.length > 1 : sign[0] === "<" ? value < limit : value > limit;
  };
  if (right.column) {
    const other = right.column;
    if (other.kind === "text" || unitOf(other.unit)?.family !== unitOf(column.unit)?.family) {
      throw new NotUnderstood(`${left.said} and ${right.said} are not the same kind of thing`);
    }
    const factor = (unitOf(other.unit)?.size ?? 1) / (unitOf(column.unit)?.size ?? 1);
    return (row) => {
      const [value, limit] = [keyOf(row.cells[column.index], "number"), keyOf(row.cells[other.index], "number")];
      return value !== null && limit !== null && holds(value, limit * factor, false);
    };
  }
  if (right.number === undefined) throw new NotUnderstood(`${right.said} is no number; ${exampleOf(left)}`);
  const limit = inUnitsOf(left, right);
  return (row) => {
    const cell = row.cells[column.index];
    const value = keyOf(cell, "number");
    return value !== null && holds(value, limit, shownValue(cell, column) === limit);
  };
}

// A limit is the same as a value that is shown so: 20.8 s is 20,805,922 us.
function shownValue(cell, column) {
  const [number, unit] = cell.textContent.split(" ");
  const factor = unit ? (unitOf(unit)?.size ?? NaN) / (unitOf(column.unit)?.size ?? 1) : 1;
  return plainNumber(number) * factor;
}

function inUnitsOf(left, right) {
  const own = unitOf(left.column.unit);
  if (right.unit) {
    if (own?.family !== right.unit.family) {
      const has = own ? `${left.said} is ${own.family.what}` : `${left.said} has no unit`;
      throw new NotUnderstood(`${has}, ${right.said} is ${right.unit.family.what}`);
    }
    return (right.number * right.unit.size) / own.size;
  }
  if (!left.hasUnit && left.column.isScaled && right.number !== 0) throw new NotUnderstood(exampleOf(left));
  return right.number;
}

function exampleOf({ said, column }) {
  const family = unitOf(column.unit)?.family;
  return family ? `${said} is ${family.what}: write ${said} < ${family.example}` : `write ${said} < 5`;
}

function noColumn(left, table) {
  const near = nearest(plainName(left.said), table.aliases);
  const names = table.columns.map(({ heading }) => heading);
  const listed = names.length > 8 ? `${names.slice(0, 8).join(", ")}, ...` : names.join(", ");
  const meant = near && table.byAlias.get(near)[0].column.heading;
  return `no column ${left.said}` + (meant ? `; did you mean ${meant}?` : `; columns are ${listed}`);
}

function nearest(word, names) {
  const [best] = names.map((name) => [editDistance(word, name), name]).sort((a, b) => a[0] - b[0]);
  return best && best[0] <= Math.max(1, word.length / 3) ? best[1] : null;
}

function editDistance(a, b) {
  let row = [...Array(b.length + 1).keys()];
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] !== b[j - 1])));
    }
    row = next;
  }
  return row.at(-1);
}
