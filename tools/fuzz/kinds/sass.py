"""Machine code as text: what nvdisasm, cuobjdump and Triton write."""

from __future__ import annotations

import random
from pathlib import Path

from gemm_eval.autotune.asm import score_file
from gemm_eval.errors import GemmEvalError
from tests.autotune.test_asm_texts import CODE, cuobjdump
from tools.fuzz.mutate import mutate_text

_DATA = Path(__file__).parents[3] / "tests" / "data" / "asm"
TEXTS = (
    (_DATA / "sm80.triton.sass").read_text(encoding="utf-8"),
    (_DATA / "sm90a.nvdisasm.sass").read_text(encoding="utf-8"),
    cuobjdump(CODE) + cuobjdump(CODE, "other"),
)
_WORDS = (
    "/*0010*/ HGMMA.64x256x16.F32 ;", "BRA 0x10 ;", "@P0 BRA `(.L_x_0) ;", ".L_x_0:\n", "LBB0:\n", "NOP;", "EXIT ;",
    "--:-:-:Y:5\tHMMA.16816.F32 R8, R4, R6, R8;\n", "Function : k\n", '.section .text.k,"ax"\n', "BRA.U.ANY",
    '.other k,@"STO_CUDA_ENTRY"', "SHI_REGISTERS=", "code for sm_90", ".99999x99999x99999", "gdesc[UR4],",
)  # fmt: skip


def run_one(rng: random.Random, folder: Path) -> str:
    """Score a file."""
    file = folder / "kernel.sass"
    file.write_text(mutate_text(rng, rng.choice(TEXTS), words=_WORDS, others=TEXTS), encoding="utf-8")
    try:
        card = score_file(file, kernel=rng.choice((None, "gemm_kernel")))
    except GemmEvalError as error:
        return type(error).__name__
    return "ok" if card.loop.is_loop else "ok without a loop"
