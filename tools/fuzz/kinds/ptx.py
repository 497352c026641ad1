"""PTX."""

from __future__ import annotations

import random
from pathlib import Path

from gemm_eval.autotune.asm import score_file
from gemm_eval.errors import GemmEvalError
from tests.autotune.test_asm_texts import GEMM
from tools.fuzz.mutate import mutate_text

_DATA = Path(__file__).parents[3] / "tests" / "data" / "asm"
_TEXTS = (GEMM, *((_DATA / f"{name}.ptx").read_text(encoding="utf-8") for name in ("sm80", "sm90a")))
_WORDS = (
    ".entry", ".entry k() {", ".visible .entry k(.param .u64 p) .reqntid 1", ".reqntid 1, 2, 3, 4", ".maxnreg 5",
    ".shared .align 16 .b8 s[9][9];", ".local .b64 l[4];", "{", "}", "ret;", "bra L;", "L:", "@%p1", "@!",
    ".loc 1 1 1\n",
    "mma.sync.m16n8k16;", "wgmma.mma_async.m64n8k16.f32 {a}, {b};", "cp.async.ca.shared.global [a], [b], 010;",
    "wmma.mma.m99999n1k1;", "st.v9.b128 [a], b;", "/*", "*/", "// \n",
)  # fmt: skip


def run_one(rng: random.Random, folder: Path) -> str:
    """Score a file."""
    file = folder / "kernel.ptx"
    file.write_text(mutate_text(rng, rng.choice(_TEXTS), words=_WORDS, others=_TEXTS), encoding="utf-8")
    try:
        card = score_file(file, kernel=rng.choice((None, "gemm_kernel")))
    except GemmEvalError as error:
        return type(error).__name__
    return "ok" if card.loop.is_loop else "ok without a loop"
