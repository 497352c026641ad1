"""Cubins. nvdisasm takes a third of a second, so that in most cases a stand-in writes instructions drawn at random."""

import random
from pathlib import Path
from unittest import mock

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.autotune.asm import occupancy_of_card, score, score_file
from gemm_eval.device.sass import nvdisasm_version
from gemm_eval.errors import GemmEvalError
from tests.autotune.fake_cubin import ABI_CUDA_12, ABI_CUDA_13, FLAGS_SM_80, FLAGS_SM_90A, FakeKernel, make_cubin
from tools.fuzz.kinds.asm_text import SASS
from tools.fuzz.mutate import mutate_bytes

_DATA = Path(__file__).parents[3] / "tests" / "data" / "asm"
_WHOLE = tuple((_DATA / f"{name}.cubin").read_bytes() for name in ("sm80", "sm90a"))
_KERNEL = FakeKernel("gemm_kernel", bytes(256), smem_bytes=2048, reqntid=(128, 1, 1))
_SMALL = (
    make_cubin(_KERNEL),
    make_cubin(_KERNEL, _KERNEL._replace(name="other"), flags=FLAGS_SM_80[ABI_CUDA_12]),
    make_cubin(_KERNEL, flags=FLAGS_SM_90A[ABI_CUDA_13], abi=ABI_CUDA_13, options="-arch sm_90a"),
)
_LINES = tuple(line.partition("\t")[2] for line in SASS[0].splitlines() if ";" in line)
_SHARE_OF_NVDISASM = 0.05
_has_nvdisasm = False


def prepare() -> None:
    """Look for nvdisasm."""
    global _has_nvdisasm
    try:
        _has_nvdisasm = bool(nvdisasm_version())
    except GemmEvalError:
        _has_nvdisasm = False
    load_arch("h200-sxm", GpuSpec)


def run_one(rng: random.Random, folder: Path) -> str:
    """Score a file, and ask for its occupancy."""

    def written(code: bytes, target: str) -> str:
        num = len(code) // 16
        text = ""
        for i in range(num):
            line = f"@P0 BRA 0x{16 * rng.randrange(num):x};" if rng.random() < 0.1 else rng.choice(_LINES)
            text += f"/*{16 * i:04x}*/ {line}\n" if "LBB" not in line else f"/*{16 * i:04x}*/ NOP;\n"
        return text

    file = folder / "kernel.cubin"
    file.write_bytes(mutate_bytes(rng, rng.choice(rng.choice((_WHOLE, _SMALL))), others=_WHOLE + _SMALL))
    is_real = rng.random() < _SHARE_OF_NVDISASM and _has_nvdisasm
    try:
        real = score.disassemble_code  # type: ignore[attr-defined]
        with mock.patch.object(score, "disassemble_code", real if is_real else written):
            card = score_file(file, kernel=rng.choice((None, "gemm_kernel")))
            occupancy_of_card(card, load_arch("h200-sxm", GpuSpec), smem_bytes=rng.choice((None, 1 << 16)))
    except GemmEvalError as error:
        return type(error).__name__
    return "ok, nvdisasm" if is_real else "ok"
