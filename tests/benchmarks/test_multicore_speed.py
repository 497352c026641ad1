"""Speed of the multi-core model. ``make bench`` prints each group with the ratio to its fastest row in parentheses.

As plain tests (``make slow``) they only check that the compared ways agree.
"""

import itertools
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, MulticoreSpec, load_arch
from gemm_eval.dtypes import HALF_BITS_PER_BYTE
from tests.benchmarks.transformer_gemms import transformer_gemms

SQUARE = (1, 4096, 4096, 4096)


@pytest.fixture(scope="module")
def evaluator() -> GEMMEvaluator:
    """The teaching chip, exactly its 8 cores at work."""
    evaluator = GEMMEvaluator(load_arch("demo-8core"), allow_idle_cores=False)
    evaluator.evaluate(*SQUARE)  # compiles, or loads from the disk cache
    evaluator.cache_clear()
    return evaluator


@pytest.mark.benchmark(group="one GEMM: 1x4096x4096x4096 on demo-8core")
class TestOneGemm:
    def test_cold(self, benchmark: Any, evaluator: GEMMEvaluator) -> None:
        result = benchmark.pedantic(
            evaluator.evaluate, SQUARE, setup=evaluator.cache_clear, rounds=1000, warmup_rounds=10
        )
        assert result.is_exhaustive

    def test_cached(self, benchmark: Any, evaluator: GEMMEvaluator) -> None:
        first = evaluator.evaluate(*SQUARE)
        assert benchmark.pedantic(evaluator.evaluate, SQUARE, rounds=1000, iterations=100) is first


def check_cold(benchmark: Any, evaluator: GEMMEvaluator, **types: str) -> None:
    """Time 1,000 transformer GEMMs that nobody asked for before, each alone."""
    shapes = transformer_gemms(1000)
    evaluator.evaluate(*shapes[0], **types)  # type: ignore[arg-type]
    evaluator.cache_clear()
    turn = itertools.cycle(shapes)
    result = benchmark.pedantic(evaluator.evaluate, setup=lambda: (next(turn), types), rounds=len(shapes))
    assert result.is_exhaustive
    assert evaluator.cache_info().hits == 0


@pytest.mark.benchmark(group="1,000 transformer GEMMs, cold, each timed alone (microseconds a GEMM)")
@pytest.mark.parametrize("idle", [False, True], ids=["all-cores", "idle-cores"])
@pytest.mark.parametrize("dtype", ["fp16", "w4a16"])
@pytest.mark.parametrize("num_cores", [8, 64, 132])
def test_cold_transformer_gemms(benchmark: Any, num_cores: int, dtype: str, idle: bool) -> None:
    check_cold(benchmark, GEMMEvaluator(scaled(num_cores), allow_idle_cores=idle), dtype=dtype)


def scaled(num_cores: int) -> MulticoreSpec:
    """The teaching chip with other cores, and as much DRAM bandwidth for each."""
    base = load_arch("demo-8core", MulticoreSpec)
    return base.with_(num_cores=num_cores, dram_gb_per_s=base.dram_gb_per_s * num_cores / base.num_cores)


def with_all_levels(arch: MulticoreSpec) -> MulticoreSpec:
    """The chip with everything that a spec may leave out of overlap timing, each at a value that counts somewhere."""
    dtype = arch.default_dtype
    steps = max(arch.cube_steps_per_cycle.values())
    step_bytes = (arch.cube_m + arch.cube_n) * arch.cube_k_of(dtype) * dtype.half_bits // HALF_BITS_PER_BYTE
    return arch.with_(
        shared_bytes=1 << 22,
        shared_gb_per_s=3.0 * arch.dram_gb_per_s,
        dram_write_gb_per_s=0.6 * arch.dram_gb_per_s,
        feed_bytes_per_cycle=steps * step_bytes,  # just what the matrix unit takes
        resident=("C",),
        resident_max_frac=0.5,
        weight_load_cycles=20,
        packs={"A": "private", "B": "shared"},
        pack_gb_per_s=60.0,
        pack_near_bytes=1 << 18,
        sync_us=2.0,
        launch_floor_us=5.0,
        partial_dtype={dtype: "fp16"},
    )


@pytest.mark.parametrize("levels", ["one", "all"])
@pytest.mark.parametrize("shape", [(1, 16, 4096, 12288), (1, 4096, 4096, 4096), (1, 33, 777, 5001)], ids=str)
@pytest.mark.parametrize("name", ["demo-8core", "sg2260e", "ascend-910"])
def test_cold_levels(benchmark: Any, name: str, shape: tuple[int, int, int, int], levels: str) -> None:
    """The two rows of a chip and shape are one below the other: their ratio is what the fields cost."""
    benchmark.group = f"cold, with one level and no optional field, and with all: {name}, {shape}"
    arch = load_arch(name, MulticoreSpec)
    evaluator = GEMMEvaluator(with_all_levels(arch) if levels == "all" else arch)
    evaluator.evaluate(*shape)
    result = benchmark.pedantic(
        evaluator.evaluate, shape, setup=evaluator.cache_clear, rounds=300, warmup_rounds=10
    )  # fmt: skip
    assert result.is_exhaustive
    assert (result.breakdown["pack_us"] > 0.0) == (levels == "all")


@pytest.mark.parametrize("levels", ["one", "all"])
@pytest.mark.parametrize("name", ["demo-8core", "sg2260e", "ascend-910"])
def test_cold_transformer_gemms_with_levels(benchmark: Any, name: str, levels: str) -> None:
    benchmark.group = f"1,000 transformer GEMMs, cold, with one level and no optional field, and with all: {name}"
    arch = load_arch(name, MulticoreSpec)
    check_cold(benchmark, GEMMEvaluator(with_all_levels(arch) if levels == "all" else arch))


@pytest.mark.benchmark(group="pipeline timing, 8 cores, cold")
@pytest.mark.parametrize("shape", [(1, 16, 4096, 12288), (1, 1024, 1024, 1024), (1, 4096, 4096, 4096)], ids=str)
def test_cold_pipeline(benchmark: Any, shape: tuple[int, int, int, int]) -> None:
    evaluator = GEMMEvaluator(load_arch("demo-8core").with_(timing="pipeline"))
    evaluator.evaluate(1, 64, 64, 64)
    result = benchmark.pedantic(evaluator.evaluate, shape, setup=evaluator.cache_clear, rounds=10)
    assert result.is_exhaustive
