"""Block-scaled types, fp4, layouts of operands, fp32, tf32 and fp8 added in fp32: what moves, and who runs them."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, UnsupportedError
from gemm_eval.errors import InvalidProblemError
from gemm_eval.mapping import KernelConfig, Schedule
from gemm_eval.models.gpu.candidates import as_config, stage_bytes
from gemm_eval.models.gpu.families import TileChoice
from gemm_eval.workload import GemmTypes
from tests.cases import case

BLOCK_SCALED = ("fp8_block", "mxfp8", "mxfp4", "nvfp4")
SIZES = (2, 300, 1024, 520)


@pytest.fixture(scope="module")
def b200() -> GEMMEvaluator:
    return GEMMEvaluator("b200", disk_cache=False)


@pytest.fixture(scope="module")
def h200() -> GEMMEvaluator:
    return GEMMEvaluator("h200-sxm", disk_cache=False)


def test_everything_moves_once_where_nothing_is_in_l2(b200: GEMMEvaluator) -> None:
    G, M, K, N = SIZES
    a8, b8, a4, b4 = G * M * K, G * N * K, G * M * K // 2, G * N * K // 2
    for dtype, a_bytes, b_bytes, scale_bytes in (
        ("fp8_block", a8 + G * M * 8 * 4, b8, G * 5 * 8 * 4),  # 520 columns: 4 blocks of 128 and 8 more
        ("mxfp8", a8 + G * M * 32, b8, G * N * 32),
        ("mxfp4", a4 + G * M * 32, b4, G * N * 32),
        ("nvfp4", a4 + G * M * 64, b4, G * N * 64),
        ("fp4", a4, b4, 0),
        ("w4a16_mxfp4", 2 * a8, b4, G * N * 32),
        ("w4a16_nvfp4", 2 * a8, b4, G * N * 64),
        ("w4a8_fp8", a8, b4, G * N * 8 * 2),
    ):
        with case(dtype):
            library = "hypothetical" if dtype.startswith("w4a16_") else None  # ours are padded
            result = b200.evaluate(*SIZES, dtype, l2="cold-all", library=library)
            c_bytes = 2 * G * M * N
            assert dict(result.traffic) == {
                "a_bytes": a_bytes, "b_bytes": b_bytes, "scale_bytes": scale_bytes, "c_bytes": c_bytes,
            }  # fmt: skip
            assert "1.00x the compulsory" in result.explain()
            assert result.mapping.cta_k * result.problem.types.a.dtype.bits == 128 * 8
            again = b200.evaluate_mapping(result.problem, result.mapping, l2="cold-all", library=library)
            assert again.latency_us == result.latency_us


def test_a_stage_holds_the_scales() -> None:
    for dtype, expected in (
        ("fp8", (128 + 256) * 128),
        ("fp8_block", (128 + 256) * 128 + (128 + 2) * 4),
        ("mxfp8", (128 + 256) * (128 + 4)),
        ("mxfp4", (128 + 256) * (128 + 8)),
        ("nvfp4", (128 + 256) * (128 + 16)),
        ("w4a16_mxfp4", 128 * 128 + 256 * (32 + 2)),
        ("w4a16_nvfp4", 128 * 128 + 256 * (32 + 4)),
        ("w4a16", 128 * 128 + 256 * (32 + 2)),
        ("w4a8_fp8", 128 * 128 + 256 * (64 + 2)),
    ):
        types = GemmTypes.parse(dtype)
        config = as_config(types, TileChoice("sm100_tcgen05", 128, 256, 8, Schedule.PINGPONG, ((1, 1),)), 1, 1, 2)
        assert stage_bytes(types, config) == expected, dtype
    fp4 = GemmTypes.parse("nvfp4")  # a step of 128 elements, 8 groups
    short = as_config(fp4, TileChoice("sm120_block_fp4", 128, 128, 8, Schedule.COOPERATIVE, ((1, 1),)), 1, 1, 2)
    assert stage_bytes(fp4, short) == 2 * 128 * (64 + 8)


def test_who_runs_them(b200: GEMMEvaluator, h200: GEMMEvaluator) -> None:
    for dtype in BLOCK_SCALED:
        assert b200.evaluate(*SIZES, dtype) == b200.evaluate(*SIZES, dtype, library="trtllm")
        assert b200.evaluate(*SIZES, dtype, library="cublas").options["library"] == "cublas"
        for library in ("gemm-eval", "hypothetical"):
            with pytest.raises(UnsupportedError, match="weight-only kernels; for dense GEMMs use library cublas"):
                b200.evaluate(*SIZES, dtype, library=library)
    with pytest.raises(UnsupportedError, match="trtllm runs fp8 on sm_89, sm_120 alone"):
        b200.evaluate(*SIZES, "fp8", library="trtllm")
    for dtype in ("mxfp4", "nvfp4", "fp4"):
        with pytest.raises(UnsupportedError, match="h200-sxm cannot multiply fp4"):
            h200.evaluate(*SIZES, dtype)
    for dtype in ("w4a16_mxfp4", "w4a16_nvfp4"):
        assert h200.evaluate(*SIZES, dtype).options["library"] == "gemm-eval"
        assert h200.evaluate(*SIZES, dtype, output_dtype="fp32").options["library"] == "hypothetical"  # not ours
    assert h200.evaluate(*SIZES, "w4a8_fp8").options["library"] == "gemm-eval"
    assert h200.evaluate(*SIZES, "w4a8_fp8", library="gemm-eval").options["library"] == "gemm-eval"
    with pytest.raises(UnsupportedError, match="on sm_90 also fp8 inputs"):
        b200.evaluate(*SIZES, "w4a8_fp8", library="gemm-eval")
    with pytest.raises(UnsupportedError, match="kernels of trtllm take fp16 or bf16 inputs, got fp8"):
        h200.evaluate(*SIZES, "w4a8_fp8", library="trtllm")
    assert h200.evaluate(*SIZES, "w4a16", group_n=2).options["library"] == "hypothetical"  # not ours
    assert h200.evaluate(*SIZES, "w4a16").options["library"] == "gemm-eval"


def test_rows_start_on_16_bytes(b200: GEMMEvaluator) -> None:
    for dtype, k in (*((dtype, 1024 + 8) for dtype in BLOCK_SCALED), ("fp4", 1024 + 16)):
        with pytest.raises(UnsupportedError, match=r"rows of A and B .* start on 16 bytes, .*: pad K or N$"):
            b200.evaluate(1, 16, k, 512, dtype)
        with pytest.raises(UnsupportedError, match="pad K or N"):
            b200.evaluate(1, 16, 1024, 511, dtype)
        assert b200.evaluate(1, 16, 1024, 1, dtype).latency_us > 0


H100, A100, B200 = (GEMMEvaluator(name, disk_cache=False) for name in ("h100-sxm", "a100-sxm-80gb", "b200"))
PHYSICS: Any = {"correction": False}


def family(*sizes: int, **options: Any) -> str:
    return str(H100.evaluate(*sizes, **PHYSICS, **options).mapping.family)


@pytest.mark.parametrize(
    ("layout", "sizes", "expected"),
    [
        ("tn", (1, 4097, 4096, 4096), "sm90_wgmma"),  # M runs along memory nowhere
        ("nt", (1, 4097, 4096, 4096), "mma_elementwise"),  # along A
        ("tt", (1, 4098, 4096, 4096), "mma_unaligned"),
        ("nt", (1, 4096, 4095, 4096), "sm90_wgmma"),  # K runs along memory nowhere
        ("nn", (1, 4096, 4095, 4096), "mma_elementwise"),  # along A
        ("tt", (1, 4096, 4095, 4096), "mma_elementwise"),  # along B
        ("nt", (1, 1, 4096, 4096), "sm90_wgmma"),  # a single row lies in one piece
        ("nn", (1, 4096, 4096, 4095), "mma_elementwise"),
    ],
)
def test_rows_start_where_the_layout_has_them(layout: str, sizes: tuple[int, ...], expected: str) -> None:
    assert family(*sizes, dtype="bf16", layout=layout) == expected
    problem = GemmProblem(*sizes, "bf16", layout=layout)  # type: ignore[arg-type]
    table = H100.evaluate_many([problem], **PHYSICS)
    assert table[0] == H100.evaluate_problem(problem, **PHYSICS)
    assert table["family"][0] == expected


def test_aligned_gemms_take_what_they_took_by_the_terms_alone() -> None:
    times = {H100.evaluate(1, 512, 4096, 4096, "bf16", layout=layout, **PHYSICS).latency_us for layout in
             ("tn", "nn", "nt", "tt")}  # fmt: skip
    assert len(times) == 1


def test_a_frame_has_layouts_of_its_own() -> None:
    frame = pd.DataFrame({"G": 1, "M": 4098, "K": 4096, "N": 4096, "layout": ["tn", "nt", None]})
    table = H100.evaluate_many(frame, "bf16")
    assert table["layout"].tolist() == ["tn", "nt", "tn"]
    assert table["latency_us"][1] > 2 * table["latency_us"][0] == 2 * table["latency_us"][2]
    again = H100.evaluate_many(table.to_pandas()[["G", "M", "K", "N", "input_dtype", "layout"]])
    assert np.array_equal(again["latency_us"], table["latency_us"])


@pytest.mark.parametrize("dtype", ["fp8", "int8", "w4a16", "fp8_block"])
def test_narrow_types_have_one_layout_before_blackwell(dtype: str) -> None:
    with pytest.raises(UnsupportedError, match="in layout tn alone, got nn"):
        H100.evaluate(1, 512, 4096, 4096, dtype, layout="nn")


def test_words_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="layout must be one of tn, nn, nt, tt, got 'ab'"):
        H100.evaluate(1, 64, 64, 64, layout="ab")
    with pytest.raises(InvalidProblemError, match="accumulate must be one of fast, full"):
        H100.evaluate(1, 64, 64, 64, "fp8", accumulate="slow")
    with pytest.raises(InvalidProblemError, match="accumulate is for fp8 in A and B"):
        H100.evaluate(1, 64, 64, 64, "bf16", accumulate="full")


@pytest.mark.parametrize(
    ("sizes", "schedule"), [((1, 64, 8192, 64), "MULTISTAGE"), ((1, 4096, 4096, 4096), "COOPERATIVE")]
)
def test_large_tf32_kernels_are_persistent_and_keep_k_whole(sizes: tuple[int, ...], schedule: str) -> None:
    mapping = H100.evaluate(*sizes, dtype="tf32").mapping
    assert isinstance(mapping, KernelConfig)
    assert mapping.schedule.name == schedule
    assert (mapping.split_k > 1) is (schedule == "MULTISTAGE")


def test_fp32_runs_on_cuda_cores_and_tf32_on_tensor_cores() -> None:
    sizes = 1, 4096, 4096, 4096
    assert family(*sizes, dtype="fp32") == "simt"
    assert family(*sizes, dtype="tf32") == "sm90_tf32_wgmma"
    slow, fast = (H100.evaluate(*sizes, dtype).latency_us for dtype in ("fp32", "tf32"))
    assert 0.5 * 67 < 2e-6 * 4096**3 / slow < 67  # TFLOP/s of the data sheet
    assert slow > 5 * fast
    assert A100.evaluate(*sizes, "fp32").latency_us > 2e-6 * 4096**3 / 19.5


def test_full_sums_of_fp8_take_longer_where_tiles_are_large() -> None:
    fast, full = (H100.evaluate(1, 4096, 8192, 8192, "fp8", accumulate=how) for how in ("fast", "full"))
    assert full.latency_us > fast.latency_us
    assert full.mapping.family == "sm90_wgmma_full"
    assert H100.evaluate(1, 4096, 8192, 8192, "fp8") == fast
    one, other = (B200.evaluate(1, 512, 4096, 4096, "fp8", accumulate=how).latency_us for how in ("fast", "full"))
    assert one == other  # its tensor cores add in fp32 as they are


def test_no_batch_of_cublas_has_a_split_k() -> None:
    lone, batch = (H100.evaluate(G, 16, 16384, 512, "bf16").mapping.split_k for G in (1, 2))
    assert lone > 1 == batch
