"""No cliff that neither the hardware nor a library's rule has: neighbouring sizes take alike, or as long as said."""

import contextlib

import numpy as np
import numpy.typing as npt
import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu import LIBRARIES, pad_problem
from gemm_eval.models.gpu.coefficients import COEFFICIENTS
from gemm_eval.models.gpu.families import default_coefficients
from gemm_eval.units import time_text
from gemm_eval.validation.tables import find_timings, measured_root
from tests.cases import case
from tests.strategies import GPUS

pd = pytest.importorskip("pandas")

NUM_SIZES = 60
STEP_BYTES = 128
SM_L2_BYTES_PER_CYCLE = 64.0
WAVES = 1.7  # other tiles, fewer of which fill the SMs


def sizes(seed: int, least: int = 64) -> npt.NDArray[np.int64]:
    """G, M, K, N, [num, 4], even over logarithms."""
    rng = np.random.default_rng(seed)
    most = np.log([8192, 30_000, 30_000])
    drawn = np.exp(rng.uniform(np.log([1, least, least]), most, (NUM_SIZES, 3))).astype(np.int64)
    return np.insert(drawn, 0, 1, axis=1)


def latencies(evaluator: GEMMEvaluator, problems: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[np.float64]:
    # of the terms alone: a learned correction goes by the sizes that were asked for
    found = (evaluator.evaluate(*problem, dtype=dtype, correction=False) for problem in problems.tolist())
    return np.array([result.latency_us for result in found])


def padded(problems: npt.NDArray[np.int64], k_multiple: int, n_multiple: int) -> npt.NDArray[np.int64]:
    multiples = np.array([1, 1, k_multiple, n_multiple])
    return -(-problems // multiples) * multiples


def explained_factor(arch: GpuSpec, dtype: DType, family: str, load_bytes: int) -> float:
    """What rows off 16 bytes cost at most: a 128 x 128 tile's arithmetic against its loads and mma.sync's rate."""
    c = default_coefficients(family)
    rate = SM_L2_BYTES_PER_CYCLE * c["unaligned_frac"] * load_bytes / 4 / (1 + c["line_conflict"])
    load_cycles = 256 * STEP_BYTES / rate
    arithmetic_cycles = 2 * 128 * 128 * (STEP_BYTES // 2) / arch.tensor_flop_per_cycle[dtype]
    return WAVES * (1 + load_cycles / arithmetic_cycles + 1 / 0.31)  # mma.sync has 0.31 of the rate, or more


@pytest.mark.parametrize("arch", GPUS, ids=lambda arch: arch.name)
def test_rows_off_16_bytes_take_no_longer_than_their_loads(arch: GpuSpec) -> None:
    problems = sizes(1)
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    aligned_us = latencies(evaluator, padded(problems, 8, 8), "fp16")
    for k_multiple, family, load_bytes in ((1, "mma_elementwise", 2), (2, "mma_unaligned", 4)):
        problems_off = padded(problems, k_multiple, k_multiple)
        ratio = latencies(evaluator, problems_off, "fp16") / aligned_us
        worst = int(np.argmax(ratio))
        with case(arch.name, load_bytes, problems_off[worst].tolist(), ratio[worst]):
            assert ratio[worst] < explained_factor(arch, DType.FP16, family, load_bytes)
        is_large = (problems[:, 1] >= 64) & (problems[:, 2] >= 512) & (problems[:, 3] >= 512)
        assert np.median(ratio[is_large]) > 1.0


@pytest.mark.parametrize("arch", GPUS, ids=lambda arch: arch.name)
def test_what_a_library_pads_takes_what_the_padded_gemm_takes(arch: GpuSpec) -> None:
    problems = sizes(2)
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    has_tcgen05 = arch.sm_arch in ("sm_100", "sm_103")
    for dtype, k_multiple, n_multiple in (("fp8", 16, 8), ("int8", *((16, 4) if has_tcgen05 else (4, 1)))):
        if DType(dtype) in arch.tensor_flop_per_cycle:
            run = padded(problems, k_multiple, n_multiple)
            assert (latencies(evaluator, problems, dtype) == latencies(evaluator, run, dtype)).all()
    evaluator = GEMMEvaluator(arch, library="hypothetical", disk_cache=False)
    run = padded(problems, 32, 8)
    assert (latencies(evaluator, problems, "w4a16") == latencies(evaluator, run, "w4a16")).all()


@pytest.mark.parametrize("arch", GPUS, ids=lambda arch: arch.name)
def test_an_operand_that_is_read_once_moves_its_bytes(arch: GpuSpec) -> None:
    """No term counts padding that nobody moves: A and B of one tile of C are read once, as the library stores them."""
    for dtype in ("fp16", "fp8", "int8", "nvfp4", "w4a16"):
        evaluator = GEMMEvaluator(arch, disk_cache=False, library="hypothetical" if dtype == "w4a16" else "cublas")
        for K in (4096, 4100, 4104, 4112, 1000):
            with contextlib.suppress(UnsupportedError):
                result = evaluator.evaluate(1, 16, K, 64, dtype=dtype, correction=False)
                library, types = LIBRARIES[result.options["library"]], result.problem.types
                stored = pad_problem(result.problem, library.padding(arch.sm_arch, types))
                assert result.traffic["a_bytes"] * 8 <= 16 * stored.K * types.a.dtype.bits
                assert result.traffic["b_bytes"] * 8 <= 64 * stored.K * types.b.dtype.bits


def test_the_pads_of_the_issue_are_gone_or_named() -> None:
    b200 = GEMMEvaluator("b200", disk_cache=False)
    odd, padded_one = (b200.evaluate(1, 2048, K, 4096, dtype="fp8") for K in (27_621, 27_632))
    assert odd.latency_us == padded_one.latency_us
    assert "K padded from 27,621 to 27,632, which the time includes: cublas has no fp8 kernels" in odd.explain()
    assert "adding:" not in padded_one.explain()

    # rows of 6,712 bytes start on 8: half of K = 13,424, which starts on 16, and not 3 times of it
    narrow, half, twice = (b200.evaluate(1, 4096, K, 8192, dtype="int8") for K in (6712, 6720, 13_424))
    assert narrow.latency_us == half.latency_us < twice.latency_us
    assert "K padded from 6,712 to 6,720, which the time includes: cublas has no timed int8" in narrow.explain()

    odd, padded_one = (b200.evaluate(1, 2048, 10_880, N, dtype="bf16") for N in (4665, 4672))
    assert odd.latency_us > 5 * padded_one.latency_us
    said = f"Padding: N padded from 4,665 to 4,672 would take {time_text(padded_one.latency_us)}"
    assert said in odd.explain()
    assert "cublas loads others by single elements" in odd.explain()
    by_four = b200.evaluate(1, 2048, 10_880, 4668, dtype="bf16")
    assert "cublas loads others by 4 bytes" in by_four.explain()
    assert padded_one.latency_us < by_four.latency_us < odd.latency_us


@pytest.fixture(scope="module", params=["bf16", "fp16"])
def off(request: pytest.FixtureRequest) -> pd.DataFrame:
    """Timings of rows off 16 bytes, with the bytes that all rows start on."""
    frame = pd.read_parquet(measured_root("h200-sxm") / "cublas" / f"{request.param}-unaligned.parquet")
    both = 2 * (frame["K"] | frame["N"])
    return frame.assign(row_bytes=both & -both, dtype=request.param)


def test_cublas_has_two_kinds_of_kernels_for_rows_off_16_bytes(off: pd.DataFrame) -> None:
    align = off["kernel"].str.extract(r"_tn_align(\d)")[0]
    tensor = align.notna()

    assert tensor.mean() > 0.85  # others take a few tokens without tensor cores
    assert (align[tensor & (off["row_bytes"] == 2)] == "1").all()
    assert (align[tensor & (off["row_bytes"] > 2)] == "2").all()  # rows on 8 bytes have no kernels of their own
    assert off.loc[~tensor, "M"].max() <= 12


def test_timings_show_the_cliffs_that_the_model_has(off: pd.DataFrame) -> None:
    """Against the padded GEMM: of rows on 2 bytes 5 times as long in the median, whether of K or of N."""
    evaluator = GEMMEvaluator("h200-sxm", disk_cache=False)
    large = off[(off["M"] >= 256) & (off["K"] >= 1000)]
    problems = large.assign(G=1)[["G", "M", "K", "N"]].to_numpy()
    dtype = str(off["dtype"].iloc[0])
    padded_us = latencies(evaluator, padded(problems, 8, 8), dtype)
    measured = np.log(large["latency_us"].to_numpy() / padded_us)
    said = np.log(latencies(evaluator, problems, dtype) / padded_us)
    is_k, is_n = large["K"].to_numpy() % 2 == 1, large["N"].to_numpy() % 2 == 1
    for rows, least in ((is_k & ~is_n, 4.0), (is_n & ~is_k, 4.0), (~is_k & ~is_n, 2.0)):
        assert rows.sum() > 15
        assert np.exp(np.median(measured[rows])) > least
        assert abs(np.median(said[rows] - measured[rows])) < 0.12


def test_cliffs_are_held_out_within_their_error() -> None:
    sets = find_timings("h200-sxm", ["cublas/bf16-unaligned", "cublas/fp16-unaligned"])

    assert [len(item) for item in sets] == [451, 451]
    assert {item.name for item in COEFFICIENTS} >= {"unaligned_frac", "line_conflict"}
    assert not {(N, K) for item in sets for N, K in item.pairs if N % 8 == K % 8 == 0}


def test_the_rate_of_narrow_loads_is_that_of_eight_rows_at_a_time() -> None:
    """A warp's load of 2 or 4 bytes a thread takes 4 threads to a row, so 8 cycles of the first-level cache or more."""
    for family, load_bytes in (("mma_elementwise", 2), ("mma_unaligned", 4)):
        rate = SM_L2_BYTES_PER_CYCLE * default_coefficients(family)["unaligned_frac"] * load_bytes / 4
        assert 0.8 * 4 * load_bytes < rate < 1.1 * 4 * load_bytes
