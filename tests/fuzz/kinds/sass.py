"""SASS as text."""

from __future__ import annotations

import random
from pathlib import Path

from gemm_eval.autotune.asm import score_file
from gemm_eval.errors import GemmEvalError
from tests.fuzz.mutate import mutate_text
from tests.unit.test_asm_sass import CODE, cuobjdump, nvdisasm, triton


def run_one(rng: random.Random, folder: Path) -> str:
    """Score a file."""
    text = rng.choice((cuobjdump, nvdisasm, triton))(CODE)
    file = folder / "kernel.sass"
    file.write_text(mutate_text(rng, text, words=("BRA", "0x10")), encoding="utf-8")
    try:
        score_file(file)
    except GemmEvalError as error:
        return type(error).__name__
    return "ok"
