"""Score cards of what Triton makes of a small GEMM, without a GPU: counts are what the config implies."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gemm_eval import GemmProblem
from gemm_eval.autotune.asm import ScoreCard, kernel_code, loop_k, score_cubins, score_ptx, score_sass
from gemm_eval.autotune.triton.arguments import shared_bytes_bounds
from gemm_eval.device.sass import nvdisasm_version
from gemm_eval.errors import GemmEvalError
from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.models.gpu.triton.code import MmaCount

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

_WARP = 32
_COPY_BYTES = 16


@triton.jit
def gemm_kernel(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, K, stride_a, stride_b, stride_c,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IS_SWAPPED: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_N if IS_SWAPPED else BLOCK_M, BLOCK_M if IS_SWAPPED else BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + offs_m[:, None] * stride_a + (k + offs_k)[None, :])
        b = tl.load(b_ptr + offs_n[:, None] * stride_b + (k + offs_k)[None, :])
        acc = tl.dot(b, tl.trans(a), acc) if IS_SWAPPED else tl.dot(a, tl.trans(b), acc)
    if IS_SWAPPED:
        acc = tl.trans(acc)
    tl.store(c_ptr + offs_m[:, None] * stride_c + offs_n[None, :], acc.to(tl.float16))


class Case(NamedTuple):
    """A config on a GPU, and the tensor-core instructions that it must come to."""

    capability: int
    dtype: str
    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    mma: MmaCount
    is_swapped: bool = False
    num_stages: int = 3


CASES = {
    "wgmma": Case(90, "fp16", 128, 128, 64, 4, MmaCount(64, 128, 16, 16, False, 2 * 4)),
    "wgmma, two warpgroups, fp8": Case(90, "fp8e4nv", 128, 64, 128, 8, MmaCount(64, 64, 32, 8, False, 4)),
    "wgmma, rows along N": Case(90, "bf16", 16, 64, 128, 4, MmaCount(64, 16, 16, 16, False, 8), True),
    "mma.sync": Case(80, "fp16", 64, 64, 32, 4, MmaCount(16, 8, 16, 16, True, 4 * 8 * 2 // 4), num_stages=4),
    "mma.sync on Hopper": Case(90, "fp16", 16, 64, 128, 4, MmaCount(16, 8, 16, 16, True, 8 * 8 // 4)),
}


class Compiled(NamedTuple):
    """What Triton makes, and the card of its cubin."""

    asm: Any
    smem_bytes: int
    card: ScoreCard


def compile_case(case: Case) -> Any:
    types = dict.fromkeys(("a_ptr", "b_ptr"), f"*{case.dtype}") | {"c_ptr": "*fp16", "K": "i32"}
    types |= dict.fromkeys(("stride_a", "stride_b", "stride_c"), "i32")
    constants = {
        "BLOCK_M": case.block_m, "BLOCK_N": case.block_n, "BLOCK_K": case.block_k, "IS_SWAPPED": case.is_swapped,
    }  # fmt: skip
    source = ASTSource(
        gemm_kernel, types | dict.fromkeys(constants, "constexpr"), constants,
        {(i,): [["tt.divisibility", 16]] for i in range(len(types))},
    )  # fmt: skip
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", case.capability, _WARP), options=options)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    try:
        nvdisasm_version()
    except GemmEvalError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.setenv("GEMM_EVAL_CACHE_DIR", "off")
        kernels = {name: compile_case(case) for name, case in CASES.items()}
        cards = score_cubins([kernel.asm["cubin"] for kernel in kernels.values()])
    return {
        name: Compiled(kernel.asm, kernel.metadata.shared, card)
        for (name, kernel), card in zip(kernels.items(), cards, strict=True)
    }


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("name", CASES)
def test_the_main_loop_is_what_the_config_implies(compiled: dict[str, Compiled], name: str) -> None:
    case, card = CASES[name], compiled[name].card
    unrolled = loop_k(card.loop, block_m=case.block_m, block_n=case.block_n, num_warps=case.num_warps) // case.block_k
    elem_bytes = 1 if case.dtype == "fp8e4nv" else 2
    copied = (case.block_m + case.block_n) * case.block_k * elem_bytes

    assert unrolled >= 1
    assert card.loop.is_loop
    assert card.loop.mma == (case.mma._replace(num=case.mma.num * unrolled),)
    assert card.loop.ops.tensor == case.mma.num * unrolled
    assert card.loop.copied_bytes == unrolled * copied // case.num_warps
    assert {access.width_bytes for access in card.loop.accesses if access.kind == "cp_async"} == {_COPY_BYTES}
    assert (card.loop.ops.ldmatrix > 0) == (case.mma.m == 16)
    assert card.loop.ops.spill == 0
    assert card.loop.ops.branch >= 1


@pytest.mark.parametrize("name", CASES)
def test_what_it_takes(compiled: dict[str, Compiled], name: str) -> None:
    case, card = CASES[name], compiled[name].card

    assert (card.kernel, card.source) == ("gemm_kernel", "cubin")
    assert card.target == f"sm_{case.capability}" + "a" * (case.capability >= 90)
    assert (card.num_threads, card.stack_bytes, card.static_smem_bytes) == (case.num_warps * _WARP, 0, 0)
    accumulators = case.block_m * case.block_n // (case.num_warps * _WARP)
    assert card.registers is not None
    assert accumulators < card.registers <= 255
    dtype = "fp8" if case.dtype == "fp8e4nv" else case.dtype
    problem = GemmProblem(1, 1024, 1024, 1024, input_dtype=dtype, output_dtype="fp16")
    tile = TritonConfig(case.block_m, case.block_n, case.block_k, case.num_warps, case.num_stages)
    least, most = shared_bytes_bounds(problem, tile)
    assert least <= compiled[name].smem_bytes <= most


@pytest.mark.parametrize("name", CASES)
def test_the_cost_model_gets_its_code(compiled: dict[str, Compiled], name: str) -> None:
    case, found = CASES[name], compiled[name]
    code = kernel_code(
        found.card, block_m=case.block_m, block_n=case.block_n, num_warps=case.num_warps, smem_bytes=found.smem_bytes
    )

    assert code.loop.k % case.block_k == 0
    assert code.smem_bytes == found.smem_bytes > 0
    assert code.outside > 0
    fields = code.loop
    classes = (
        fields.alu, fields.fma, fields.convert, fields.shared, fields.copy, fields.store, fields.barrier, fields.wait,
        fields.branch, fields.spill,
    )  # fmt: skip
    assert sum(classes) + sum(mma.num for mma in fields.mma) <= fields.issue


@pytest.mark.parametrize("name", CASES)
def test_ptx_says_the_same_of_the_tensor_cores_and_copies(compiled: dict[str, Compiled], name: str) -> None:
    found, card = compiled[name], compiled[name].card
    ptx = score_ptx(found.asm["ptx"])

    assert (ptx.kernel, ptx.target, ptx.num_threads) == (card.kernel, card.target, card.num_threads)
    assert ptx.loop.is_loop
    unrolled = card.loop.ops.tensor // ptx.loop.ops.tensor
    assert [mma._replace(num=mma.num * unrolled) for mma in ptx.loop.mma] == list(card.loop.mma)
    for kind in ("ldmatrix", "cp_async"):
        assert getattr(ptx.loop.ops, kind) * unrolled == getattr(card.loop.ops, kind)


def test_tritons_own_text_gives_the_same_counts(compiled: dict[str, Compiled]) -> None:
    for found in (compiled["wgmma"], compiled["mma.sync"]):
        text = score_sass(found.asm["sass"])
        assert (text.ops, text.loop) == (found.card.ops, found.card.loop)
