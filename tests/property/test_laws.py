"""Laws that users count on: more hardware never hurts, larger problems never help, and symmetry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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


def _more_bandwidth(arch: MulticoreSpec, data: st.DataObject) -> dict[str, Any]:
    factor = data.draw(st.floats(1.0, 8.0))
    optional = ("noc_gb_per_s", "dram_write_gb_per_s", "shared_gb_per_s", "feed_bytes_per_cycle")
    names = [name for name in optional if getattr(arch, name) is not None and data.draw(st.booleans())]
    return {name: getattr(arch, name) * factor for name in ("dram_gb_per_s", *names)}


def _more_shared(arch: MulticoreSpec, data: st.DataObject) -> dict[str, Any]:
    assume(arch.timing == "overlap")
    assert arch.shared_bytes is not None
    return {"shared_bytes": arch.shared_bytes + data.draw(st.integers(0, 1 << 16))}


def _with_shared(arch: MulticoreSpec) -> dict[str, Any]:
    if arch.timing != "overlap":
        return {}
    gb_per_s = arch.shared_gb_per_s or 4.0 * arch.dram_gb_per_s
    return {"shared_bytes": arch.shared_bytes or 100, "shared_gb_per_s": gb_per_s}


def _faster_cubes(arch: MulticoreSpec, data: st.DataObject) -> dict[str, Any]:
    factor = data.draw(st.floats(1.0, 8.0))
    return {"cube_steps_per_cycle": {dtype: rate * factor for dtype, rate in arch.cube_steps_per_cycle.items()}}


# what the chip is before, and what more it gets, which never hurts
MORE: dict[str, tuple[Callable[[MulticoreSpec], dict[str, Any]], Callable[..., dict[str, Any]]]] = {
    "bandwidth": (lambda _: {}, _more_bandwidth),
    # with more room operands may come to lie in SRAM, where they take room from tiles
    "sram": (
        lambda _: {"resident": ()},
        lambda arch, data: {"sram_bytes": arch.sram_bytes + data.draw(st.integers(0, 1 << 16))},
    ),
    "shared memory": (_with_shared, _more_shared),
    "cores that share DRAM fairly": (
        lambda _: {"dram_sharing": "fair", "resident": ()},
        lambda arch, data: {"num_cores": arch.num_cores + data.draw(st.integers(1, 9))},
    ),
    "a faster matrix unit": (lambda _: {}, _faster_cubes),
    "tasks that start sooner": (
        lambda _: {},
        lambda arch, data: {"task_us": arch.task_us * data.draw(st.floats(0.0, 1.0))},
    ),
}


@pytest.mark.parametrize("what", MORE)
@given(st.data())
def test_more_never_hurts(what: str, data: st.DataObject) -> None:
    before_of, more_of = MORE[what]
    arch = data.draw(strategies.archs())
    arch = arch.with_(**before_of(arch))
    changes, problem = more_of(arch, data), data.draw(strategies.problems(arch))
    before = _best(arch, problem)
    assume(before is not None)
    after = _best(arch.with_(**changes), problem)
    assert after is not None
    assert before is not None
    # a pipeline's time is a long sum, whose last bits depend on the mapping
    slack = 1.0 if arch.timing == "overlap" else 1.0 + 1e-12
    assert after.latency_us <= before.latency_us * slack


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
    bigger = dataclasses.replace(problem, **{size: getattr(problem, size) + 1})
    before, after = _best(arch, problem), _best(arch, bigger)
    assume(before is not None and after is not None)
    assert before is not None
    assert after is not None
    assert after.latency_us >= before.latency_us * (1 - 1e-12)
