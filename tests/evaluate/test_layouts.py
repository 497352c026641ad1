"""Layouts of operands, fp32 and tf32, and fp8 whose products are added in fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem
from gemm_eval.errors import InvalidProblemError, UnsupportedError

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


def test_chips_with_many_cores_are_the_same_in_all_layouts() -> None:
    chip = GEMMEvaluator("demo-8core", disk_cache=False)
    results = [chip.evaluate(1, 64, 4096, 4096, layout=layout) for layout in ("tn", "nn", "nt")]
    assert len({result.latency_us for result in results}) == 1
    assert ["same in all of them" in result.explain() for result in results] == [False, True, True]


@pytest.mark.parametrize("dtype", ["fp8", "int8", "w4a16", "fp8_block"])
def test_narrow_types_have_one_layout_before_blackwell(dtype: str) -> None:
    with pytest.raises(UnsupportedError, match="in layout tn alone, got nn"):
        H100.evaluate(1, 512, 4096, 4096, dtype, layout="nn")


def test_fp8_of_data_center_blackwell_has_all() -> None:
    assert B200.evaluate(1, 512, 4096, 4096, "fp8", layout="nn").latency_us > 0


def test_words_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="layout must be one of tn, nn, nt, tt, got 'ab'"):
        H100.evaluate(1, 64, 64, 64, layout="ab")
    with pytest.raises(InvalidProblemError, match="accumulate must be one of fast, full"):
        H100.evaluate(1, 64, 64, 64, "fp8", accumulate="slow")
    with pytest.raises(InvalidProblemError, match="accumulate is for fp8 in A and B"):
        H100.evaluate(1, 64, 64, 64, "bf16", accumulate="full")


def test_a_problem_says_its_layout() -> None:
    problem = GemmProblem(1, 8, 16, 32, "bf16", layout="nt")  # type: ignore[arg-type]
    assert eval(repr(problem), {"GemmProblem": GemmProblem}) == problem
    assert str(problem).endswith("bf16 -> bf16 nt")
    assert H100.evaluate_problem(problem).to_dict()["problem"]["layout"] == "nt"


def test_fp32_runs_on_cuda_cores_and_tf32_on_tensor_cores() -> None:
    sizes = 1, 4096, 4096, 4096
    assert family(*sizes, dtype="fp32") == "simt"
    assert family(*sizes, dtype="tf32") == "sm90_tf32"
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
