"""Multi-core searches: laws that users count on, and what rules of a library leave."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gemm_eval import GEMMEvaluator, GemmProblem, GEMMResult, InfeasibleError, MulticoreSpec
from gemm_eval.arch import LibraryRules
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions
from gemm_eval.models.multicore import cost_of_mapping, unpack_cost
from gemm_eval.models.multicore.cost_kernels import block_of
from gemm_eval.models.multicore.model import pack_params, params_in_room
from gemm_eval.models.multicore.pipeline_kernels import bytes_of, ceil_div, reload_factors
from gemm_eval.search import find_ruled_few, find_ruled_many
from tests import strategies
from tests.cases import examples
from tests.oracle import naive

# ---- laws ------------------------------------------------------------------------------------------------------------


def result_of(arch: MulticoreSpec, problem: GemmProblem) -> GEMMResult | None:
    try:
        return GEMMEvaluator(arch).evaluate_problem(problem)
    except InfeasibleError:
        return None


@given(st.data())
def test_swapping_m_and_n_changes_nothing_on_a_symmetric_chip(data: st.DataObject) -> None:
    arch = data.draw(strategies.archs(has_memories=False))
    packs = dict.fromkeys("AB", "shared") if arch.packs else {}
    no_sides = {"lane_num": 1, "align_bytes": 1, "weight_load_cycles": 0.0, "task_us": 0.0, "tile_buffers": {}}
    arch = arch.with_(cube_n=arch.cube_m, packs=packs, **no_sides)
    problem = data.draw(strategies.problems(arch))
    assume(not problem.is_weight_quantized and problem.input_dtype.bits >= 8)
    # block floats share exponents along rows, of C too, which begin anew in each
    assume(all(of.half_bits == 2 * of.bits for of in (problem.input_dtype, problem.output_dtype)))
    a = problem.input_dtype
    straight = result_of(arch, GemmProblem(problem.G, problem.M, problem.K, problem.N, a, a, problem.output_dtype))
    swapped = result_of(arch, GemmProblem(problem.G, problem.N, problem.K, problem.M, a, a, problem.output_dtype))
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
    before, after = result_of(arch, problem), result_of(arch, bigger)
    assume(before is not None and after is not None)
    assert before is not None
    assert after is not None
    assert after.latency_us >= before.latency_us * (1 - 1e-12)


# ---- what a library chooses ------------------------------------------------------------------------------------------


_ORDERS = [order.name.lower() for order in LoopOrder]
_SIZES = st.lists(st.sampled_from((1, 2, 4, 8, 16)), max_size=3, unique=True)


@st.composite
def rules(draw: st.DrawFn) -> LibraryRules:
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        fields["splits"] = draw(st.lists(st.sampled_from("GMNK"), unique=True))
    if draw(st.booleans()):
        fields["loop_orders"] = draw(st.lists(st.sampled_from(_ORDERS), min_size=1, unique=True))
    for name in ("tile_m", "tile_n", "tile_k"):
        fields[name] = draw(_SIZES)
    fields["whole"] = draw(st.lists(st.sampled_from("MNK"), max_size=1, unique=True))
    fields["loads_once"] = draw(st.lists(st.sampled_from("ABC"), max_size=2, unique=True))
    if draw(st.booleans()):
        fields["max_tile_bytes"] = {draw(st.sampled_from("AB")): draw(st.sampled_from((8, 64, 500)))}
    return LibraryRules(**fields)


def _least_cut_k(of: LibraryRules, arch: MulticoreSpec, problem: GemmProblem, p: Any, block: Any) -> int:
    """Return the tile_k that cuts a K which the rules leave whole into as few parts as SRAM and buffers hold."""
    units = naive.units_of(arch, problem)
    sizes_m, sizes_n = (
        [size for size in naive.legal_tile_sizes(length, unit) if name not in of.whole or size == length]
        for name, length, unit in zip("MN", (block.m, block.n), units[:2], strict=True)
    )
    if "M" not in of.whole and of.tile_m:
        sizes_m = [size for size in sizes_m if size in {min(one, block.m) for one in of.tile_m}]
    if "N" not in of.whole and of.tile_n:
        sizes_n = [size for size in sizes_n if size in {min(one, block.n) for one in of.tile_n}]
    fitting = [
        size for size in naive.legal_tile_sizes(block.k, units.tile_k)
        if any(
            naive.sram_used_bytes(arch, problem, Tile(m, n, size)) <= int(p["sram_usable_bytes"])
            and _is_in_buffers(of, p, Tile(m, n, size))
            for m, n in itertools.product(sizes_m, sizes_n)
        )
    ]  # fmt: skip
    most = ceil_div(max(fitting, default=units.tile_k), units.tile_k)
    num_units = ceil_div(block.k, units.tile_k)
    return min(ceil_div(num_units, ceil_div(num_units, most)) * units.tile_k, block.k)


def _is_in_buffers(of: LibraryRules, p: Any, tile: Tile) -> bool:
    a_bytes = bytes_of(tile.tile_m * tile.tile_k, p["a_half_bits"])
    b_bytes = bytes_of(tile.tile_k * tile.tile_n, p["b_half_bits"])
    return a_bytes <= of.max_tile_bytes.get("A", 1 << 62) and b_bytes <= of.max_tile_bytes.get("B", 1 << 62)


def _is_allowed(of: LibraryRules, whole_k: int, p: Any, block: Any, mapping: MulticoreMapping) -> bool:
    partition, tile, order = mapping
    if any(count > 1 and name not in of.splits for name, count in zip("GMNK", partition, strict=True)):
        return False
    if of.loop_orders and order.name.lower() not in of.loop_orders:
        return False
    sizes = block.m, block.n, block.k
    for name, size, whole, known in zip("MNK", tile, sizes, (of.tile_m, of.tile_n, of.tile_k), strict=True):
        if name in of.whole:
            if size != (whole_k if name == "K" else whole):
                return False
        elif known and size not in {min(one, whole) for one in known}:
            return False
    trips = [ceil_div(whole, size) for whole, size in zip(sizes, tile, strict=True)]
    for name, factor in zip("ABC", reload_factors(int(order), *trips), strict=True):
        if name in of.loads_once and factor > 1:
            return False
    return _is_in_buffers(of, p, tile)


@st.composite
def cases(draw: st.DrawFn) -> tuple[MulticoreSpec, GemmProblem, LibraryRules]:
    arch = draw(strategies.archs(max_cores=6))
    return arch, draw(strategies.problems(arch, most_units=4)), draw(rules())


@settings(max_examples=examples(450))
@given(cases(), st.booleans())
def test_the_choice_is_the_best_that_the_rules_leave(
    case: tuple[MulticoreSpec, GemmProblem, LibraryRules], allow_idle_cores: bool
) -> None:
    arch, problem, of = case
    params = params_in_room(pack_params(arch, problem.types), problem)
    p = params[0]
    best: tuple[float, ...] | None = None
    for row in enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores).tolist():
        block = block_of(p, *problem.sizes, *row)
        if block.E_K > 1 and arch.reduction == "none":
            continue
        units = naive.units_of(arch, problem)
        whole_k = _least_cut_k(of, arch, problem, p, block)
        sizes = (naive.legal_tile_sizes(*pair) for pair in zip((block.m, block.n, block.k), units, strict=True))
        for tile, order in itertools.product(itertools.product(*sizes), LoopOrder):
            mapping = MulticoreMapping(Partition(*row), Tile(*tile), order)
            if not _is_allowed(of, whole_k, p, block, mapping) or not naive.is_legal(arch, problem, mapping):
                continue
            latency_us = float(cost_of_mapping(params, problem, mapping)["latency_us"][0])
            if best is None or latency_us < best[0]:
                best = (latency_us,)
    found = find_ruled_many(
        arch, of, pack_params(arch, problem.types), np.zeros(1, np.int64), np.array([problem.sizes], np.int64),
        allow_idle_cores=allow_idle_cores,
    )[0]  # fmt: skip
    if best is None:
        assert found["active_cores"] == 0
        return
    tolerance = 0.0 if arch.timing == "overlap" else 1e-9
    assert abs(found["latency_us"] - best[0]) <= tolerance * best[0]
    mapping = unpack_cost(found).mapping
    if of.restricts_tiles or of.restricts_partitions:
        block = block_of(p, *problem.sizes, *mapping.partition)
        assert _is_allowed(of, _least_cut_k(of, arch, problem, p, block), p, block, mapping)
    record = params[0]
    ranked = find_ruled_few(
        arch, of, problem, pack_params(arch, problem.types), 4, by_partition=False, allow_idle_cores=allow_idle_cores
    )
    assert (ranked["latency_us"][0], unpack_cost(ranked[0]).mapping) == (found["latency_us"], mapping)
    if arch.timing == "overlap":
        assert (np.diff(ranked["latency_us"]) >= 0.0).all()
    assert (ranked["sram_used_bytes"] <= record["sram_usable_bytes"]).all()
