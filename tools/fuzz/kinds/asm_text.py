"""Kernels as text: PTX, and machine code as nvdisasm, cuobjdump and Triton write it."""

import random
from pathlib import Path

from gemm_eval.autotune.asm import score_file
from gemm_eval.errors import GemmEvalError
from tests.autotune.test_asm_texts import CODE, GEMM, cuobjdump
from tools.fuzz.mutate import mutate_text

_DATA = Path(__file__).parents[3] / "tests" / "data" / "asm"
_PTX = (GEMM, *((_DATA / f"{name}.ptx").read_text(encoding="utf-8") for name in ("sm80", "sm90a")))
_PTX_WORDS = (
    ".entry", ".entry k() {", ".visible .entry k(.param .u64 p) .reqntid 1", ".reqntid 1, 2, 3, 4", ".maxnreg 5",
    ".shared .align 16 .b8 s[9][9];", ".local .b64 l[4];", "{", "}", "ret;", "bra L;", "L:", "@%p1", "@!",
    ".loc 1 1 1\n",
    "mma.sync.m16n8k16;", "wgmma.mma_async.m64n8k16.f32 {a}, {b};", "cp.async.ca.shared.global [a], [b], 010;",
    "wmma.mma.m99999n1k1;", "st.v9.b128 [a], b;", "/*", "*/", "// \n",
)  # fmt: skip
SASS = (
    (_DATA / "sm80.triton.sass").read_text(encoding="utf-8"),
    (_DATA / "sm90a.nvdisasm.sass").read_text(encoding="utf-8"),
    cuobjdump(CODE) + cuobjdump(CODE, "other"),
)
_SASS_WORDS = (
    "/*0010*/ HGMMA.64x256x16.F32 ;", "BRA 0x10 ;", "@P0 BRA `(.L_x_0) ;", ".L_x_0:\n", "LBB0:\n", "NOP;", "EXIT ;",
    "--:-:-:Y:5\tHMMA.16816.F32 R8, R4, R6, R8;\n", "Function : k\n", '.section .text.k,"ax"\n', "BRA.U.ANY",
    '.other k,@"STO_CUDA_ENTRY"', "SHI_REGISTERS=", "code for sm_90", ".99999x99999x99999", "gdesc[UR4],",
)  # fmt: skip
_KINDS = {"ptx": (_PTX, _PTX_WORDS), "sass": (SASS, _SASS_WORDS)}


def run_one(rng: random.Random, folder: Path) -> str:
    """Score a file."""
    suffix = rng.choice(tuple(_KINDS))
    texts, words = _KINDS[suffix]
    file = folder / f"kernel.{suffix}"
    file.write_text(mutate_text(rng, rng.choice(texts), words=words, others=texts), encoding="utf-8")
    try:
        card = score_file(file, kernel=rng.choice((None, "gemm_kernel")))
    except GemmEvalError as error:
        return f"{suffix}: {type(error).__name__}"
    return f"{suffix}: ok" if card.loop.is_loop else f"{suffix}: ok without a loop"
