"""Laws that users count on: more hardware never hurts, symmetry, and the same answer whoever asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gemm_eval import GEMMEvaluator, GemmProblem, GEMMResult, InfeasibleError, MulticoreSpec
from tests import strategies


def _best(arch: MulticoreSpec, problem: GemmProblem) -> GEMMResult | None:
    try:
        return GEMMEvaluator(arch).evaluate_problem(problem)
    except InfeasibleError:
        return None


def _check_no_worse(arch: MulticoreSpec, problem: GemmProblem, changes: dict[str, Any]) -> None:
    before = _best(arch, problem)
    assume(before is not None)
    after = _best(arch.with_(**changes), problem)
    assert after is not None
    assert before is not None
    # a pipeline's time is a long sum, whose last bits depend on the mapping
    slack = 1.0 if arch.timing == "overlap" else 1.0 + 1e-12
    assert after.latency_us <= before.latency_us * slack


@given(st.data(), st.floats(1.0, 8.0))
def test_more_bandwidth_never_hurts(data: st.DataObject, factor: float) -> None:
    arch = data.draw(strategies.archs())
    changes: dict[str, Any] = {"dram_gb_per_s": arch.dram_gb_per_s * factor}
    for name in ("noc_gb_per_s", "dram_write_gb_per_s", "shared_gb_per_s", "feed_bytes_per_cycle"):
        if getattr(arch, name) is not None and data.draw(st.booleans()):
            changes[name] = getattr(arch, name) * factor
    _check_no_worse(arch, data.draw(strategies.problems(arch)), changes)


@given(st.data(), st.integers(0, 1 << 16))
def test_more_sram_never_hurts(data: st.DataObject, more_bytes: int) -> None:
    # with more room operands may come to lie in SRAM, where they take room from tiles
    arch = data.draw(strategies.archs()).with_(resident=())
    _check_no_worse(arch, data.draw(strategies.problems(arch)), {"sram_bytes": arch.sram_bytes + more_bytes})


@given(st.data(), st.integers(0, 1 << 16))
def test_more_shared_memory_never_hurts(data: st.DataObject, more_bytes: int) -> None:
    arch = data.draw(strategies.archs())
    assume(arch.timing == "overlap")
    gb_per_s = arch.shared_gb_per_s or 4.0 * arch.dram_gb_per_s
    arch = arch.with_(shared_bytes=arch.shared_bytes or 100, shared_gb_per_s=gb_per_s)
    assert arch.shared_bytes is not None
    _check_no_worse(arch, data.draw(strategies.problems(arch)), {"shared_bytes": arch.shared_bytes + more_bytes})


@given(st.data(), st.integers(1, 9))
def test_more_cores_never_hurt_with_fair_sharing(data: st.DataObject, more: int) -> None:
    arch = data.draw(strategies.archs()).with_(dram_sharing="fair", resident=())
    _check_no_worse(arch, data.draw(strategies.problems(arch)), {"num_cores": arch.num_cores + more})


@given(st.data(), st.floats(1.0, 8.0))
def test_a_faster_matrix_unit_never_hurts(data: st.DataObject, factor: float) -> None:
    arch = data.draw(strategies.archs())
    rates = {dtype: rate * factor for dtype, rate in arch.cube_steps_per_cycle.items()}
    _check_no_worse(arch, data.draw(strategies.problems(arch)), {"cube_steps_per_cycle": rates})


@given(st.data(), st.floats(0.0, 1.0))
def test_tasks_that_start_sooner_never_hurt(data: st.DataObject, share: float) -> None:
    arch = data.draw(strategies.archs())
    _check_no_worse(arch, data.draw(strategies.problems(arch)), {"task_us": arch.task_us * share})


@given(st.data())
def test_swapping_m_and_n_changes_nothing_on_a_symmetric_chip(data: st.DataObject) -> None:
    arch = data.draw(strategies.archs(has_memories=False))
    packs = dict.fromkeys("AB", "shared") if arch.packs else {}
    no_sides = {"lane_num": 1, "align_bytes": 1, "weight_load_cycles": 0.0, "task_us": 0.0}
    arch = arch.with_(cube_n=arch.cube_m, packs=packs, **no_sides)
    problem = data.draw(strategies.problems(arch))
    assume(not problem.is_weight_quantized and problem.input_dtype.bits >= 8)
    # block floats share exponents along rows, of C too, which begin anew in each
    assume(all(of.half_bits == 2 * of.bits for of in (problem.input_dtype, problem.output_dtype)))
    a = problem.input_dtype
    straight = _best(arch, GemmProblem(problem.G, problem.M, problem.K, problem.N, a, a, problem.output_dtype))
    swapped = _best(arch, GemmProblem(problem.G, problem.N, problem.K, problem.M, a, a, problem.output_dtype))
    assert (straight is None) == (swapped is None)
    if straight is not None and swapped is not None:
        assert straight.latency_us == pytest.approx(swapped.latency_us, rel=1e-12)


@given(st.data())
def test_latency_grows_with_every_size(data: st.DataObject) -> None:
    """One more row, column or batch element never helps, where every core stands for itself.

    (With multicast or fair sharing it can: one more core that takes part shares a slice, or leaves others less.)
    """
    arch = data.draw(strategies.archs(has_memories=False))
    arch = arch.with_(reduction="none", load_sharing="private", dram_sharing="static")
    if "shared" in arch.packs.values():  # likewise: one more core packs its part
        arch = arch.with_(packs=dict.fromkeys(arch.packs, "private"))
    problem = data.draw(strategies.problems(arch))
    size = data.draw(st.sampled_from(["G", "M", "N"]))
    larger = {name: getattr(problem, name) + (name == size) for name in ("G", "M", "K", "N")}
    bigger = GemmProblem(
        **larger,
        input_dtype=problem.input_dtype,
        weight_dtype=problem.weight_dtype,
        output_dtype=problem.output_dtype,
        group_size=problem.group_size,
        scale_dtype=problem.scale_dtype,
        zero_dtype=problem.zero_dtype,
    )
    before, after = _best(arch, problem), _best(arch, bigger)
    assume(before is not None and after is not None)
    assert before is not None
    assert after is not None
    assert after.latency_us >= before.latency_us * (1 - 1e-12)


@given(st.lists(st.tuples(st.integers(1, 3), *[st.integers(1, 300)] * 3), min_size=1, max_size=20))
def test_results_do_not_depend_on_threads(shapes: list[tuple[int, int, int, int]]) -> None:
    alone = [GEMMEvaluator("demo-8core").evaluate(*shape) for shape in shapes]
    shared = GEMMEvaluator("demo-8core")
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda shape: shared.evaluate(*shape), shapes))
    assert together == alone
