"""Laws that users count on: more hardware never hurts, larger problems never help, and symmetry."""

from __future__ import annotations

import dataclasses

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
