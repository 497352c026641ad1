"""Questions to commands that take minutes: every score of `validate`, every fit of `calibrate`.

`calibrate intervals`, which writes in place, is not asked: the YAML of `calibrate correction` has the same intervals.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.corpus.answer import Answer, Answers

ROOT = Path(__file__).resolve().parents[2]

VALIDATE = (
    "gpu all", "moe all --models", "attention all --groups", "collective --groups", "collective --hold-out ranks",
    "memory-bound --groups", "stacks --operations", "multicore all", "multicore all --no-fit", "w4a16", "triton",
    "dense --arch h200-sxm --worst 0", "dense --arch h100-sxm --worst 0", "dense --arch l40s --worst 0",
)  # fmt: skip
"""Arguments of `gemm-eval validate`."""

_DENSE: dict[str, dict[str, tuple[str, ...]]] = {
    "a100-sxm-80gb": {"cublas": ("sm80_mma",), "trtllm": ("sm80_int8", "sm80_weight_only")},
    "b200": {"cublas": ("sm100_tcgen05",), "trtllm": ("sm100_block_fp4", "sm100_block_fp8")},
    "h200-sxm": {
        "cublas": ("mma_elementwise", "mma_unaligned", "sm80_mma", "sm90_wgmma"),
        "trtllm": ("sm90_block_fp8", "sm90_wgmma"),
    },
    "l40s": {"cublas": ("sm80_mma", "sm89_mma_fp8"), "trtllm": ("fp8_gemv", "sm89_block_fp8")},
    "rtx-pro-6000-server": {
        "cublas": ("sm80_mma", "sm89_mma_fp8"), "trtllm": ("fp8_gemv", "sm120_block_fp4", "sm120_block_fp8"),
    },
}  # fmt: skip
_EXPERTS = {
    "a100-sxm-80gb": ("cutlass-bf16", "marlin-w4a16", "triton-bf16"),
    "b200": (
        "cutlass-bf16", "cutlass-fp8", "cutlass-nvfp4", "deepgemm-fp8_block", "trtllm-gen-bf16", "trtllm-gen-fp8_block",
        "trtllm-gen-nvfp4", "trtllm-gen-w4a16_mxfp4",
    ),
    "h200-sxm": (
        "cutlass-bf16", "cutlass-fp8", "cutlass-fp8_block", "grouped/bf16", "marlin-w4a16", "triton-bf16",
        "triton-fp8_block", "triton-w4a16_mxfp4",
    ),
}  # fmt: skip
_ATTENTION = {
    "a100-sxm-80gb": ("trtllm",), "b200": ("trtllm",), "h100-sxm": ("flashinfer",),
    "h200-sxm": ("cudnn", "flash", "trtllm"), "l40s": ("trtllm",), "rtx-pro-6000-server": ("trtllm",),
}  # fmt: skip
_W4A16 = ("w4a16_gemv", "w4a16_gemv_mma", "w4a16_sm80", "w4a16_sm90", "w4a16_sm90_cluster")
_CHIPS = ("arc-pro-b60", "ipu-gc200", "rk3588-npu", "tpu-v4", "wormhole-n150")


def _calibrations() -> Iterator[str]:
    """Yield the arguments of `gemm-eval calibrate` for every committed calibration."""
    for arch, libraries in _DENSE.items():
        for library, families in libraries.items():
            for family in families:
                for command in ("dense", "correction"):
                    yield f"{command} --arch {arch} --library {library} --family {family}"
    for command, archs in (
        ("quantization", ("b200", "h200-sxm", "l40s", "rtx-pro-6000-server")),
        ("collective", ("a100-sxm-80gb", "b200", "h200-sxm", "l40s")),
        ("multicore", _CHIPS),
        ("triton", ("h200-sxm",)),
    ):
        yield from (f"{command} --arch {arch}" for arch in archs)
    yield from (f"memory-bound --arch h200-sxm --library {library}" for library in ("engines", "torch"))
    yield from (f"moe --arch {arch} --data {name}" for arch, names in _EXPERTS.items() for name in names)
    yield from (f"attention --arch {arch} --library {name}" for arch, names in _ATTENTION.items() for name in names)
    yield from (f"w4a16 --arch h200-sxm --family {family}" for family in _W4A16)


CALIBRATE = tuple(_calibrations())
"""Arguments of `gemm-eval calibrate`, without `--out`."""
_DATED = ("date:", "code_version:")


def _validate(only: str) -> Answers:
    for words in VALIDATE:
        if only in words:
            yield Answer(words, json.dumps(_run(["validate", *words.split(), "--json"], ROOT), ensure_ascii=False))


def _calibrate(only: str) -> Answers:
    for words in CALIBRATE:
        if only not in words:
            continue
        with tempfile.TemporaryDirectory() as folder:
            is_folder = words.startswith("correction")
            out = Path(folder) / ("out" if is_folder else "out.yaml")
            printed = _run(["calibrate", *words.split(), "--out", str(out)], Path(folder))
            paths = sorted(out.rglob("*.yaml")) if is_folder else [out]
            texts = {path.name: _undated(path) for path in paths if path.exists()}
        yield Answer(words, json.dumps(texts or {"failed": printed}, ensure_ascii=False))


def _undated(path: Path) -> list[str]:
    """Return the lines of a file that do not depend on the day or the version."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(_DATED)]


def _run(words: list[str], folder: Path) -> Any:
    """Run a command; return the JSON that it prints, or its text."""
    start = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "gemm_eval", *words], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    print(f"  {time.monotonic() - start:6.1f} s  gemm-eval {' '.join(words)}", file=sys.stderr, flush=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return (done.stdout + done.stderr).splitlines()


SLOW_KINDS: dict[str, Callable[[str], Answers]] = {"validate": _validate, "calibrate": _calibrate}
