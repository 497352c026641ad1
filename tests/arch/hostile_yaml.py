"""Spec files that nobody should write, and one good one to spoil."""

GOOD = """
num_cores: {value: 2, kind: spec, source: the data sheet}
frequency_ghz: 1.0
cube_m: 16
cube_k: 16
cube_n: 16
cube_steps_per_cycle: {fp16: 1.0}
sram_bytes: 100000
dram_gb_per_s: 10
reduction: none
"""


def with_line(line: str) -> str:
    return GOOD + line + "\n"


def instead(field: str, value: str) -> str:
    lines = [line for line in GOOD.splitlines() if not line.startswith(f"{field}:")]
    return "\n".join([*lines, f"{field}: {value}", ""])


HOSTILE = {
    "python object": with_line("notes: !!python/object/apply:os.mkdir ['pwned']"),
    "python name": with_line("notes: !!python/name:os.system"),
    "python module": "!!python/module:os {}",
    "own tag": with_line("notes: !secret x"),
    "alias": with_line("title: &a x\nnotes: *a"),
    "billion laughs": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "recursive alias": "a: &a [*a]",
    "merge key": with_line("<<: {num_cores: 9}"),
    "nested merge key": with_line("sources: {<<: {a: b}}"),
    "duplicate key": with_line("num_cores: 3"),
    "duplicate quoted key": with_line("'num_cores': 3"),
    "duplicate nested key": with_line("mac_pj: {fp16: 1.0, fp16: 2.0}"),
    "huge file": GOOD + "#" * (1 << 20),
    "deep list": "a: " + "[" * 100_000,
    "deep map": "{a: " * 200_000,
    "deep block": "- " * 400_000,
    "binary": bytes(range(256)) * 10,
    "zeros": bytes(10_000),
    "latin-1": GOOD.encode() + b"notes: \xff\xfe\n",
    "utf-16": GOOD.encode("utf-16"),
    "nul": with_line("notes: a\0b"),
    "surrogate": with_line('notes: "\\ud800"'),
    "no such character": with_line('notes: "\\UFFFFFFFF"'),
    "empty": "",
    "comment": "# nothing\n",
    "null": "null\n",
    "list": "- 1\n- 2\n",
    "scalar": "just words\n",
    "two documents": GOOD + "---\nnum_cores: 3\n",
    "tab": GOOD + "\tnum_cores: 3\n",
    "unclosed": with_line("notes: [1, 2"),
    "future version": "%YAML 9.9\n---\n" + GOOD,
    "integer key": with_line("1: 2"),
    "bool key": with_line("true: 2"),
    "null key": with_line("~: 2"),
    "list key": with_line("? [a, b]\n: c"),
    "integer source key": with_line("sources: {1: x}"),
    "unhashable by tag": with_line("notes: !!map [1]"),
    "top level by tag": "!!map [1]",
    "pairs by tag": with_line("notes: !!pairs [a: b]"),
    "set by tag": with_line("notes: !!set {a, b}"),
    "int by tag": with_line("notes: !!int ''"),
    "float by tag": with_line("notes: !!float ''"),
    "bool by tag": with_line("notes: !!bool maybe"),
    "time by tag": with_line("notes: !!timestamp never"),
    "bytes by tag": with_line("notes: !!binary aGVsbG8="),
    "impossible date": instead("num_cores", "2020-13-45"),
    "long integer": instead("num_cores", "9" * 5000),
    "long hex integer": instead("num_cores", "0x" + "9" * 50_000),
    "base 60 integer": instead("num_cores", ":".join(["1"] + ["5"] * 50_000)),
    "base 60 float": instead("frequency_ghz", ":".join(["1"] + ["5"] * 50_000) + ".5"),
    "nan": instead("frequency_ghz", ".nan"),
    "infinity": instead("frequency_ghz", ".inf"),
    "overflow": instead("frequency_ghz", "1e999"),
    "null value": instead("num_cores", ""),
    "list value": instead("num_cores", "[2]"),
    "map value": instead("num_cores", "{two: 2}"),
    "float for int": instead("num_cores", "2.0"),
    "exponent for int": instead("num_cores", "1e1"),
    "string number": instead("num_cores", "'2'"),
    "bool number": instead("num_cores", "true"),
    "wrong type": with_line("type: fpga"),
    "another kind of chip": with_line("type: gpu"),
    "no type": with_line("type:"),
    "list type": with_line("type: [multicore]"),
    "unknown field": with_line("num_coress: 3"),
    "dotted field": with_line("'cube_k_by_dtype.fp16': 3"),
    "missing field": instead("num_cores", "2").replace("cube_m: 16\n", ""),
    "bad name": with_line("name: ../x"),
    "number name": with_line("name: 3"),
    "no provenance kind": instead("num_cores", "{value: 2}"),
    "extra provenance": instead("num_cores", "{value: 2, kind: spec, source: x, page: 3}"),
    "integer provenance key": instead("num_cores", "{value: 2, kind: spec, 1: x}"),
    "bad provenance kind": instead("num_cores", "{value: 2, kind: guess, source: x}"),
    "list provenance kind": instead("num_cores", "{value: 2, kind: [spec], source: x}"),
    "empty provenance": instead("num_cores", "{value: 2, kind: spec, source: ''}"),
    "provenance in provenance": instead("num_cores", "{value: {value: 2}, kind: spec, source: x}"),
    "provenance apart": with_line("provenance: {}"),
    "published scalar": with_line("published: 3"),
    "base list": with_line("base: [demo-8core]"),
    "base number": with_line("base: 3"),
    "base self": with_line("base: chip.yaml"),
    "base with sources list": "base: demo-8core\nsources: [a]\n",
    "base with sources text": "base: demo-8core\nsources: text\n",
    "base with null sources": "base: demo-8core\nsources:\n",
}  # fmt: skip
