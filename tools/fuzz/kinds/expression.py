"""Expressions of dependent fields: texts near Python's grammar, with huge numbers and what is not arithmetic."""

import random
import warnings
from pathlib import Path

from gemm_eval import load_arch
from gemm_eval.errors import GemmEvalError
from gemm_eval.sweep import Space
from gemm_eval.sweep.expressions import NoValueError
from tools.fuzz.kinds import label_of
from tools.fuzz.mutate import ODD_NUMBERS, mutate_text

_TEXTS = (
    "num_cores * (2.0 + 1.2 * sram_bytes / 2**20) + 0.02 * dram_gb_per_s",
    "sqrt(num_cores) if num_cores > 8 and not x == 2 else max(x, 1, mac_pj.fp16)",
    "1 << round(log2(sram_bytes)) | 3 & x ^ 5",
    "(10**4000000)*(10**4000000) - 1e308*10 + '%2000000000d' % 1",
    "'1'.zfill(10**10)",
    "[n for n in (1,)][0].__class__.__bases__",
    "(lambda: x)() + f'{x}' + {1: 2}[1] + (y := 2)",
    "min(abs(x), floor(-x), ceil(x / 3), int(x), float(x), round(x, -2), exp(x), log(x, 2))",
)
_LEAVES = (
    "x", "num_cores", "mac_pj.fp16", "frequency_ghz", "load_sharing", "mac_pj", "noc_gb_per_s", "True", "None", "1",
    "0", "-1", "2", "0.5", "1e308", "5e-324", "10", "'a'", "(1, 2)", "1j",
)  # fmt: skip
_BINARY = ("+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "<", "==", "is", "in", "and", "or", "@", ",")
_CALLS = ("min", "max", "abs", "round", "ceil", "floor", "sqrt", "log2", "log", "exp", "int", "float", "str", "eval")


def prepare() -> None:
    """Load what every case loads; Python's parser warns of what it will refuse later."""
    warnings.simplefilter("ignore", SyntaxWarning)
    Space(load_arch("demo-8core"), area_mm2="= num_cores").values(())


def run_one(rng: random.Random, folder: Path) -> str:
    """Make a space with an expression, and one point of it."""
    if rng.random() < 0.5:
        text = mutate_text(rng, rng.choice(_TEXTS), words=(*_LEAVES, *_BINARY, *_CALLS), others=_TEXTS)
    else:
        text = _expression(rng, rng.choice((2, 4, 7)))
    try:
        space = Space(load_arch("demo-8core"), area_mm2=f"= {text}", variables={"x": rng.choice((0, 3, 2.5, 10**300))})
        values, why = space.values((space.drawn["x"].grid()[0],))
    except GemmEvalError as error:
        return label_of(error, 1000)
    if why:
        assert values["area_mm2"] is None
        return NoValueError.__name__
    assert abs(values["area_mm2"]) < 2e308
    return "ok"


def _expression(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice((rng.choice(_LEAVES), rng.choice(_LEAVES), rng.choice(ODD_NUMBERS)))
    one, other = _expression(rng, depth - 1), _expression(rng, depth - 1)
    return rng.choice(
        (
            f"({one} {rng.choice(_BINARY)} {other})",
            f"{one} {rng.choice(_BINARY)} {other}",
            f"{rng.choice(_CALLS)}({one}, {other})",
            f"{rng.choice(_CALLS)}({one})",
            f"{one} if {other} else {one}",
            f"{rng.choice(('-', '+', 'not ', '~'))}{one}" * (60 if len(one) < 20 and rng.random() < 0.2 else 1),
        )
    )
