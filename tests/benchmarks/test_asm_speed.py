"""What a score card costs: of a cubin never seen, of many at once, of PTX, and out of the cache.

As plain tests these only check that the ways agree.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.arch.limits import limits_of_spec
from gemm_eval.autotune.asm import score_cubin, score_cubins, score_ptx
from gemm_eval.device.sass import nvdisasm_version
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels import Sizes, WeightMode
from gemm_eval.kernels.plan import choose
from gemm_eval.kernels.registry import compile_for, make_variant

SPEC = load_arch("h200-sxm", GpuSpec)
TYPES = DType.FP16, WeightMode.GROUP, 128
TOKENS = (1, 32, 4096)
CARD = "score card of a W4A16 kernel for an H200"
_PTX_STEPS = 200


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Kernels for few, some and many tokens: 1,000 to 2,000 instructions."""
    limits = limits_of_spec(SPEC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path_factory.mktemp("cuda")))
        try:
            nvdisasm_version()
            configs = [choose(Sizes(M, 4096, 28672), *TYPES, SPEC, limits) for M in TOKENS]
            return [compile_for(make_variant(config, *TYPES), limits).cubin for config in configs]
        except GemmEvalError as error:
            pytest.skip(str(error))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path))
    return tmp_path / "asm"


def forget(folder: Path, argument: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    shutil.rmtree(folder, ignore_errors=True)
    return (argument,), {}


@pytest.mark.benchmark(group=CARD)
@pytest.mark.parametrize("place", range(len(TOKENS)), ids=lambda place: f"M={TOKENS[place]}")
def test_never_seen(benchmark: Any, folder: Path, cubins: list[bytes], place: int) -> None:
    cubin = cubins[place]
    card = benchmark.pedantic(score_cubin, setup=lambda: forget(folder, cubin), rounds=5)
    assert card.loop.is_loop
    assert len(list(folder.glob("*.json"))) == 1


@pytest.mark.benchmark(group=CARD)
def test_never_seen_three_at_once(benchmark: Any, folder: Path, cubins: list[bytes]) -> None:
    cards = benchmark.pedantic(score_cubins, setup=lambda: forget(folder, cubins), rounds=5)
    assert len(list(folder.glob("*.json"))) == len(TOKENS)
    assert list(cards) == [score_cubin(cubin) for cubin in cubins]


@pytest.mark.benchmark(group=CARD)
def test_from_the_cache(benchmark: Any, folder: Path, cubins: list[bytes]) -> None:
    first = score_cubin(cubins[-1])
    assert benchmark(score_cubin, cubins[-1]) == first


def _ptx() -> str:
    """A loop as long as those of Triton, of its usual instructions."""
    step = (
        "cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;\n"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r7];\n"
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2}, {%r3, %r4}, {%r5}, {%f1, %f2};\n"
        "add.s32 %r1, %r1, 64; // next\n"
        "mov.b32 %r9, %r1;\n"
    )
    body = f"$L__BB0_1:\n{step * _PTX_STEPS}setp.lt.s32 %p1, %r1, %r8;\n@%p1 bra $L__BB0_1;\nret;\n"
    return f".version 8.7\n.target sm_80\n.visible .entry gemm() .reqntid 128\n{{\n{body}}}\n"


@pytest.mark.benchmark(group="score card of PTX with 1,000 instructions in its loop")
def test_ptx(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")
    card = benchmark(score_ptx, _ptx())
    assert card.loop.ops.tensor == _PTX_STEPS
    assert card.loop.ops.total == 5 * _PTX_STEPS + 2
