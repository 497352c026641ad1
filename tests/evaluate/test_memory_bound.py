"""Kernels whose time is that of their bytes: laws, where coefficients come from, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import GEMMEvaluator, InvalidOptionError, InvalidProblemError, list_archs
from gemm_eval.arch import GpuSpec, load_arch

SIZES = st.integers(0, 1 << 34)


@given(st.sampled_from(list_archs()), SIZES, SIZES, st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_terms_add_up_and_more_bytes_take_longer(name: str, read: int, written: int, row: int, num_rows: int) -> None:
    evaluator = GEMMEvaluator(name)
    found, more = (evaluator.evaluate_memory_bound(read, size, row, num_rows) for size in (written, 2 * written + 1))
    assert found.latency_us == pytest.approx(sum(found.breakdown.values()))
    assert min(found.breakdown.values()) >= 0.0
    assert found.latency_us <= more.latency_us * (1 + 1e-12)
    arch = evaluator.arch
    if isinstance(arch, GpuSpec) and found.num_bytes > 30 * arch.l2_bytes:
        assert found.gb_per_s < arch.dram_gb_per_s


@given(st.integers(1, 1 << 16), st.sampled_from((512, 1024, 4096, 8192, 30000)), st.booleans())
def test_more_rows_of_the_same_size_take_longer(num_rows: int, width: int, is_norm: bool) -> None:
    evaluator = GEMMEvaluator("h200-sxm")
    found, more = (
        evaluator.evaluate_memory_bound(2 * width * num, 2 * width * num, width * is_norm, num).latency_us
        for num in (num_rows, num_rows + 1)
    )
    assert found <= more * (1 + 1e-12)


def test_few_rows_leave_sms_idle_and_sums_take_time() -> None:
    evaluator = GEMMEvaluator("h200-sxm")
    size = 1 << 18

    def row_us(what: str, num_rows: int) -> float:
        return evaluator.evaluate_memory_bound(size, size, size // 2 // num_rows, num_rows, what).breakdown["row_us"]

    assert row_us("rms_norm", 1) > 5 * row_us("rms_norm", 128)
    assert row_us("cast", 1) == pytest.approx(row_us("cast", 128))  # its elements are dealt to all SMs
    assert row_us("top_k", 128) > row_us("gather", 128)  # one choice after the other
    norm = evaluator.evaluate_memory_bound(size, size, 8192, 16, "rms_norm")
    assert norm.latency_us > evaluator.evaluate_memory_bound(size, size, 8192, 16, "act").latency_us
    assert sum(norm.breakdown.values()) == pytest.approx(norm.latency_us)


def test_only_the_gpu_that_was_timed_is_calibrated() -> None:
    sources = {name: GEMMEvaluator(name).evaluate_memory_bound(1e6, 1e6).source for name in list_archs()}
    assert [name for name, source in sources.items() if source == "calibrated"] == ["h200-sxm"]
    changed = load_arch("h200-sxm", GpuSpec).model_copy(update={"num_sms": 100})
    assert GEMMEvaluator(changed).evaluate_memory_bound(1e6, 1e6).source == "analytic"


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ((-1, 0), InvalidProblemError),
        (("a", 1), InvalidProblemError),
        ((1, 1, -1), InvalidOptionError),
        ((1, 1, 0, -1), InvalidOptionError),
    ],
)
def test_what_is_refused(sizes: tuple[int, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        GEMMEvaluator("h200-sxm").evaluate_memory_bound(*sizes)
