"""Expressions of dependent fields: the arithmetic of Python on numbers, and nothing else, whatever the text."""

import math
import random
from typing import Any

import pytest

from gemm_eval.errors import InvalidOptionError
from gemm_eval.sweep import Space
from gemm_eval.sweep.expressions import parse_expression

KNOWN = {"a": 3, "b": 2.5, "on": True, "none": None, "word": "x", "table": {"fp16": 0.5}}
FUNCTIONS: dict[str, Any] = {
    "min": min, "max": max, "abs": abs, "round": round, "ceil": math.ceil, "floor": math.floor, "sqrt": math.sqrt,
    "log2": math.log2, "log": math.log, "exp": math.exp, "int": int, "float": float,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 * a + b / 4 - 1", 5.625),
        ("a ** 2 // 2 % 3", 1),
        ("1 << 20 >> a", 1 << 17),
        ("(a + 511) & -512 | 1 ^ 4", 517),
        ("-a if a > 2 and not on else +b", 2.5),
        ("1 < a <= 3 < 4 != b", True),
        ("1 < a <= 2 < 1 / 0", False),
        ("on or 1 / 0", True),
        ("0 and 1 / 0", 0),
        ("a == 3.0", True),
        ("min(a, b, 7) + max(1, 2) + abs(-1) + round(2.567, 1) + round(2.5)", 10.1),
        ("ceil(b) + floor(b) + int(b) + float(a) + sqrt(4) + log2(8) + log(8, 2) + log(1) + exp(0)", 19.0),
        ("table.fp16 * 2", 1.0),
        ("2 ** -3", 0.125),
        ("(\n a +\n 1)  # lines and comments are Python's", 4),
        ("1.7e308", 1.7e308),
        ("2 ** 1023", 2**1023),
        ("(-1) ** 10 ** 300 + 0 ** 10 ** 300 + 1 >> 10 ** 9", 0),
    ],
)
def test_values(text: str, value: Any) -> None:
    found = parse_expression(text)(KNOWN)
    assert found == pytest.approx(value)
    assert type(found) is type(value)


def test_random_expressions_are_as_in_python() -> None:
    rng = random.Random(5)

    def make(depth: int) -> str:
        if depth == 0 or rng.random() < 0.2:
            return rng.choice(("a", "b", "on", "table.fp16", "1", "0", "7", "0.25", "1e3", "-2"))
        one, other = make(depth - 1), make(depth - 1)
        kind = rng.randrange(6)
        if kind == 0:
            return f"({one} {rng.choice(('<', '<=', '>', '>=', '==', '!='))} {other})"
        if kind == 1:
            return f"({one} {rng.choice(('and', 'or'))} {other})"
        if kind == 2:
            return f"{rng.choice(('min', 'max'))}({one}, {other})"
        if kind == 3:
            return f"({one} if {other} else {make(depth - 1)})"
        if kind == 4:
            return f"({rng.choice(('not ', '-', '+'))}{one})"
        return f"({one} {rng.choice(('+', '-', '*', '/', '//', '%'))} {other})"

    names = {**KNOWN, **FUNCTIONS, "table": type("Table", (), {"fp16": 0.5})}
    for _ in range(2000):
        text = make(4)
        try:
            expected = eval(text, {"__builtins__": {}}, names)
        except ZeroDivisionError:
            with pytest.raises(ZeroDivisionError):
                parse_expression(text)(KNOWN)
            continue
        found = parse_expression(text)(KNOWN)
        assert (type(found), found) == (type(expected), expected), text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'1'.zfill(10**10)", "has Call in it, and expressions are of numbers"),
        ("'%2000000000d' % 1", "has Constant in it"),
        ("None", "has Constant in it"),
        ("...", "has Constant in it"),
        ("1j", "has Constant in it"),
        ("b'a'", "has Constant in it"),
        ("f'{a}'", "has JoinedStr in it"),
        ("a.real.imag", "has Attribute in it"),
        ("(1).real", "has Attribute in it"),
        ("[1][0]", "has Subscript in it"),
        ("[n for n in (1,)]", "has ListComp in it"),
        ("(1, 2)", "has Tuple in it"),
        ("{1: 2}", "has Dict in it"),
        ("lambda: 1", "has Lambda in it"),
        ("(a := 1)", "has NamedExpr in it"),
        ("a is a", "has Compare in it"),
        ("a in (1,)", "has Compare in it"),
        ("a @ b", "has BinOp in it"),
        ("~a", "has UnaryOp in it"),
        ("max(*(1, 2), 3)", "has Starred in it"),
        ("max(1, 2, key=abs)", "has Call in it"),
        ("abs()", "gives abs 0 arguments; it takes 1"),
        ("max(a)", "gives max 1 arguments; it takes 2 to"),
        ("eval(1)", "names 'eval', which does not exist; functions are min, max"),
        (r"'\e'", "has Constant in it"),  # of which Python warns
        ("a; b", "is no expression"),
        ("a = 1", "is no expression"),
        ("a +", "is no expression"),
        ("", "is no expression"),
        ("a\0", "is no expression"),
        ("\ud800", "is no expression"),
        ("(" * 300 + "1" + ")" * 300, "is no expression: too many nested"),
        ("-" * 5000 + "1", "an expression has 1000 characters at most, got 5,001"),
        ("-" * 900 + "1", "is nested deeper than 100 levels"),
        ("+".join("a" * 400), "is nested deeper than 100 levels"),
        ("1e999", "has an invalid number in it"),
        ("9" * 999, "has an invalid number in it"),
    ],
)
def test_what_is_no_arithmetic(text: str, message: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        parse_expression(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400
    with pytest.raises(InvalidOptionError, match="area_mm2: "):
        Space("demo-8core", area_mm2=f"= {text}")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("(10**4000000)*(10**4000000)", OverflowError), ("10 ** 308 * 10", OverflowError),
        ("1e308 * 10", OverflowError), ("-1e308 - 1e308", OverflowError), ("1e308 * 10 - 1e308 * 10", OverflowError),
        ("(10 ** 300) ** (10 ** 300)", OverflowError), ("2 ** 3 ** 4 ** 5 ** 6", OverflowError),
        ("10.0 ** 400", OverflowError), ("1 << 10 ** 9", OverflowError), ("exp(1000)", OverflowError),
        ("round(5, -10 ** 9)", OverflowError), ("(-8) ** 0.5", ValueError), ("sqrt(-1)", ValueError),
        ("1 << -1", ValueError), ("0 ** -1", ZeroDivisionError), ("a % 0", ZeroDivisionError), ("b << 1", TypeError),
        ("none + 1", TypeError), ("word * 10 ** 9", TypeError), ("table", TypeError), ("table.fp8", TypeError),
    ],
)  # fmt: skip
def test_what_has_no_value(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_expression(text)(KNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "area_mm2: '1 / 0' has no value: division by zero"),
        ("1e308 * 10", "'1e308 . 10' has no value: a value must be finite"),
        ("x" * 900, "names 'xxx.*, which does not exist; names are fields and variables"),
        ("load_sharing", "names 'load_sharing', which is no number; use a Python function"),
        ("mac_pj", "names 'mac_pj', which is no number; an entry of a table is named mac_pj.fp16"),
        ("num_cores.real", "names 'num_cores.real', which is no number"),
    ],
)
def test_what_is_wrong_at_every_point_is_said_at_once(text: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message) as caught:
        Space("demo-8core", area_mm2=f"= {text}")
    assert len(str(caught.value)) < 300


def test_what_is_wrong_at_a_point_excludes_it() -> None:
    space = Space("demo-8core", num_cores=[8, 200], area_mm2="= 10.0 ** num_cores * 10 ** 120")
    found = [space.values(row) for row in space.grid_rows(0, 2)]
    assert found[0][0]["area_mm2"] == pytest.approx(1e128)
    assert found[1][1].startswith("area_mm2: OverflowError: a value must be finite")
