"""Exact search for the best kernel config of a GEMM on a GPU, and learned corrections of the result.

A correction is one factor for a GEMM, that of its best config, so that the order of configs stays that of the model.
Our kernels have a factor for each config, and the correction chooses among those that the terms find about as fast as
the best (`Packed.is_ranked`). Without trees of its own a GEMM has the factor of the same GEMM in another state, or on
the preset that a spec was made of.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InfeasibleError, InvalidMappingError, UnsupportedError
from gemm_eval.jit import with_fixed_types
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.models import gpu as model
from gemm_eval.models.gpu import HYPOTHETICAL, Joined, Packed, w4a16
from gemm_eval.progress import run_in_chunks
from gemm_eval.search.gpu_kernels import OF_GENERIC, OF_OURS, Searches
from gemm_eval.workload import NO_LAYOUTS, GemmProblem, Layouts, distinct_groups, pack_layouts, without_lone_groups

_FIRST = np.zeros(1, np.int64)
_CONFIG = list(KernelConfig._fields)
_COST_BYTES = model.GPU_COST_DTYPE.itemsize

_correct_one = with_fixed_types(model.correct)

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Records: TypeAlias = npt.NDArray[np.void]
"""Costs of configs, of GPU_COST_DTYPE."""


def find_best_config(arch: GpuSpec, problem: GemmProblem, packed: Packed) -> Records:
    """Find the best config of all that the library has, as a record [1]; exhaustive, see MODEL.md, "Choice".

    Raises:
        InfeasibleError: the library has no kernel that this GPU can run on these types.
        UnsupportedError: the library that was asked for has no kernels for these sizes.
    """
    best = _find_best(packed, problem)
    if best["active_sms"][0] == 0:
        raise _infeasible(arch, problem, packed)
    return best


def _find_best(packed: Packed, problem: GemmProblem) -> Records:
    """Return the record [1] of the best config (active_sms 0: none), corrected unless it is of groups."""
    if problem.row_groups is None:
        return _find_plain(packed, *problem.sizes)
    out = np.zeros(1, model.GPU_COST_DTYPE)
    _search(packed.for_sizes(*problem.sizes), _FIRST, *_sizes_of(problem), out, 0, 1)
    return out


def _find_plain(packed: Packed, G: int, M: int, K: int, N: int) -> Records:
    """Return the record [1] of the best config of a GEMM or batch, corrected."""
    packed = packed.for_sizes(G, M, K, N)
    searches, sizes = _searches(packed), np.array([(G, M, K, N)], np.int64)
    out: Records = np.ndarray(1, model.KERNEL_COST_DTYPE, bytearray(_COST_BYTES))  # eight times as fast as np.zeros
    if packed.is_ranked and G == 1:
        assert packed.correction is not None
        searches.find_corrected_of_one(
            packed.params, packed.candidates, packed.columns, packed.coefficients, *packed.correction, sizes, _FIRST,
            out, 0, 1,
        )  # fmt: skip
        return out.view(model.GPU_COST_DTYPE)
    searches.find_best_of_one(
        packed.params, packed.candidates, packed.columns, packed.ranges, packed.coefficients, _FIRST, sizes, NO_LAYOUTS,
        0, 1, out,
    )  # fmt: skip
    if packed.correction is not None and (G == 1 or not packed.is_ours):
        _correct_one(out, _FIRST, sizes, *packed.correction)
    records = out.view(model.GPU_COST_DTYPE)
    if packed.carried is not None and records["active_sms"][0]:
        _carry(packed.carried, _FIRST if G == 1 or not packed.is_ours else _FIRST[:0], sizes, records)
    return records


def _sizes_of(problem: GemmProblem) -> tuple[Integers, Layouts]:
    """Return G, M, K, N [1, 4] and groups of a problem; a group that alone has rows is a GEMM."""
    if problem.row_groups is None:
        return np.array([problem.sizes], np.int64), NO_LAYOUTS
    return without_lone_groups(np.array([problem.sizes], np.int64), pack_layouts([problem.row_groups]))


def find_best_config_many(
    packed: Sequence[Packed],
    type_of: Integers,
    sizes: Integers,
    *,
    layouts: Layouts = NO_LAYOUTS,
    on_progress: Callable[[int], None] | None = None,
) -> Records:
    """Find the best config of many problems, on all cores of this machine; the result does not depend on how many.

    Args:
        packed: of each combination of types and options.
        type_of: [num_problems], index into `packed`.
        sizes: [num_problems, 4] of G, M, K, N.
        layouts: groups of rows of the problems that have such.
        on_progress: called now and then with the number of problems that are newly done.

    Returns:
        Records [num_problems], with active_sms 0 where no kernel exists.
    """
    out = np.zeros(len(sizes), model.GPU_COST_DTYPE)
    is_batch = ~layouts.is_grouped(len(sizes))
    sizes, layouts = without_lone_groups(sizes, layouts)
    chosen, place_of = model.split_by_size(packed, type_of, sizes)
    for index, ranked in enumerate(chosen):
        if ranked.is_ranked:
            rows = np.flatnonzero((place_of == index) & is_batch & (sizes[:, 0] == 1))
            run_in_chunks(partial(_search_corrected, ranked, sizes, rows, out), len(rows), on_progress)
            place_of[rows] = -1
    for is_ours in (False, True):
        some = [index for index, kernels in enumerate(chosen) if kernels.is_ours is is_ours]
        if not some:
            continue
        new_place = np.full(len(chosen) + 1, -1)  # at last of those that have their answers
        new_place[some] = np.arange(len(some))
        rows = np.flatnonzero(new_place[place_of] >= 0)
        kernels_of, kernels = new_place[place_of[rows]], [chosen[index] for index in some]
        records = np.zeros(len(rows), model.GPU_COST_DTYPE)
        work = partial(_search, model.join_packed(kernels), kernels_of, sizes[rows], layouts.take(rows), records)
        run_in_chunks(work, len(rows), on_progress)
        out[rows] = records
        for index, corrected in enumerate(kernels):
            # groups of rows are not corrected
            _correct(corrected, rows[(kernels_of == index) & is_batch[rows]], sizes, out)
    return out


def _search(
    packed: Packed | Joined, place_of: Integers, sizes: Integers, layouts: Layouts, out: Records, start: int, stop: int
) -> None:
    """Fill out[start:stop]."""
    _searches(packed).find_best_of_range(
        packed.params, packed.candidates, packed.columns, packed.ranges, packed.coefficients, place_of, sizes, layouts,
        start, stop, out.view(model.KERNEL_COST_DTYPE),
    )  # fmt: skip


def _search_corrected(packed: Packed, sizes: Integers, rows: Integers, out: Records, start: int, stop: int) -> None:
    """Fill out[rows[start:stop]], of single GEMMs, with the best configs by corrected latencies."""
    assert packed.correction is not None
    _searches(packed).find_corrected_of_range(
        packed.params, packed.candidates, packed.columns, packed.coefficients, *packed.correction, sizes, rows,
        out.view(model.KERNEL_COST_DTYPE), start, stop,
    )  # fmt: skip


def _searches(packed: Packed | Joined) -> Searches:
    return OF_OURS if packed.is_ours else OF_GENERIC


def find_top_configs(arch: GpuSpec, problem: GemmProblem, packed: Packed, k: int) -> Records:
    """Find the `k` best configs, best first; fewer when there are not so many.

    Configs that another one stands for are not listed: fewer stages at the same occupancy, another raster, more parts
    of K that are no shorter.
    """
    asked, packed = packed, packed.for_sizes(*problem.sizes)
    sizes, layouts = _sizes_of(problem)
    given = packed.params, packed.candidates, packed.coefficients, *sizes[0].tolist(), layouts
    num = _searches(packed).list_configs(*given, np.empty((0, 2), np.int64))
    if num == 0:
        raise _infeasible(arch, problem, asked)
    which = np.empty((num, 2), np.int64)
    _searches(packed).list_configs(*given, which)
    best, others = _find_best(packed, problem), _costs(packed, which, model.BEST_RASTER, problem)
    others = others[np.argsort(others["latency_us"], kind="stable")[: None if packed.is_ranked else k]]
    others = others[others[_CONFIG] != best[_CONFIG]]
    _correct_others(packed, sizes, best, others)
    out = np.concatenate([best, others[np.argsort(others["latency_us"], kind="stable")]])[:k]
    out["num_candidates"], out["num_bounded"] = num, 0
    return out


def _costs(packed: Packed, which: Integers, raster: int, problem: GemmProblem) -> Records:
    """Return the costs [num] of configs [num, 2]: the row of a candidate, and how K is split."""
    out, (sizes, layouts) = np.zeros(len(which), model.GPU_COST_DTYPE), _sizes_of(problem)
    _searches(packed).evaluate_configs(
        packed.params, packed.candidates, packed.coefficients, which, raster, *sizes[0].tolist(), layouts,
        out.view(model.KERNEL_COST_DTYPE),
    )  # fmt: skip
    return out


def evaluate_config(arch: GpuSpec, problem: GemmProblem, packed: Packed, config: KernelConfig) -> Records:
    """Return the cost [1] of a config that the user gives.

    Raises:
        InvalidMappingError: the GPU cannot run it; the message gives the hardware reason, `.rule` its name.
        UnsupportedError: the library that was asked for has no kernels for these sizes.
    """
    _check_sizes(problem, packed)
    packed = packed.for_sizes(*problem.sizes)
    split = model.STREAM_K if config.decomposition == Decomposition.STREAM_K else config.split_k
    if packed.is_ours:
        out = _costs(packed, np.array([_row_of_ours(arch, packed, problem, config, split)]), model.BEST_RASTER, problem)
    else:
        candidate = model.candidate_row(arch, problem.types, config, model.check_config(arch, problem, config))
        alone = Packed(
            packed.params, np.array([candidate], model.CANDIDATE_DTYPE), packed.coefficients[0], library=packed.library
        )
        raster = int(config.raster_order) * model.RASTER_CODE + config.raster_swizzle
        out = _costs(alone, np.array([[0, split]]), raster, problem)
    if packed.correction is not None or packed.carried is not None:
        best = _find_best(packed, problem)
        if packed.is_ranked and best[_CONFIG] == out[_CONFIG]:
            best["num_candidates"], best["num_bounded"] = 1, 0
            return best
        _correct_others(packed, _sizes_of(problem)[0], best, out)
    return out


def _row_of_ours(
    arch: GpuSpec, packed: Packed, problem: GemmProblem, config: KernelConfig, split: int
) -> tuple[int, int]:
    """Return the candidate of a config and how it cuts K; grouped kernels see on the GPU whether there is a need to."""
    w4a16.check_w4a16_family(arch, config.family)
    row = w4a16.find_row(packed.candidates, config)
    splits = np.empty(w4a16.MAX_SPLITS, np.int64)
    groups = distinct_groups(problem.row_groups, problem.G, problem.M)
    num = w4a16.splits_of_row(packed.params, packed.candidates, row, problem.K, problem.N, *groups, splits)
    ran = split
    if split == model.STREAM_K and packed.candidates[row]["family"] in w4a16.GROUPED_FAMILIES:
        ran = splits[num - 1]
    if ran not in splits[:num] or w4a16.config_of_row(packed.candidates[row], split) != config:
        ways = ", ".join("stream-K" if way == model.STREAM_K else str(way) for way in splits[:num].tolist()) or "none"
        raise InvalidMappingError(
            f"K must be cut into one of these numbers of parts for M={problem.M}, K={problem.K}, N={problem.N} by "
            f"{config}: {ways}", rule="split",
        )  # fmt: skip
    return row, ran


def _check_sizes(problem: GemmProblem, packed: Packed) -> None:
    """Raise `UnsupportedError` for sizes of which the library that was packed has no kernels."""
    if packed.for_sizes(*problem.sizes).has_kernels:
        return
    if packed.is_ours:
        w4a16.check_w4a16_sizes(problem)
    other = f"; library {HYPOTHETICAL} says what a good kernel would do"
    raise UnsupportedError(
        f"the library has kernels for rows of A and B (K long) and C (N long) that start on 16 bytes, not for "
        f"{problem}: pad K or N{other if problem.is_weight_quantized else ''}"
    )


def _infeasible(arch: GpuSpec, problem: GemmProblem, packed: Packed) -> InfeasibleError:
    """Return the error for a problem that no kernel of a library can run: what the nearest one lacks, and how much."""
    _check_sizes(problem, packed)
    library = packed.for_sizes(*problem.sizes).library
    if library == model.OURS:
        needs = w4a16.list_w4a16_needs(arch, problem.types)
    else:
        padded = model.pad_problem(problem, model.library_of(library).padding(arch.sm_arch, problem.types))
        needs = model.list_needs(arch, padded, library, load_bytes=model.load_bytes_of(padded))
    shortage = model.least_shortage(arch, needs) or model.Shortage("kernels", 1, 0, "kernels", ())
    return InfeasibleError(
        f"no kernel of library {library} for {problem} runs on {arch.name}: the nearest to it lacks {shortage.unit}",
        **shortage._asdict(),
    )


def _correct(packed: Packed, rows: Integers, sizes: Integers, records: Records) -> None:
    """Correct records of some rows of all problems, whose sizes are [num, 4]."""
    if packed.is_ours:  # other kernels may run batches, or the same several times: none was timed
        rows = rows[sizes[rows, 0] == 1]
    if packed.correction is not None:
        model.correct(records.view(model.KERNEL_COST_DTYPE), rows, sizes, *packed.correction)
    if packed.carried is not None:
        _carry(packed.carried, rows, sizes, records)


def _carry(carried: model.Carried, rows: Integers, sizes: Integers, records: Records) -> None:
    factors, trusts = records["correction_factor"][rows], records["correction_trust"][rows]
    ceilings_us = np.full(len(rows), np.inf)
    if carried.reference is not None:
        others = _find_others(carried.reference, sizes[rows])
        runs = others["active_sms"] > 0
        factors, trusts = np.where(runs, others["correction_factor"], 1.0), runs * others["correction_trust"]
        own, of_preset = records["is_calibrated"][rows], runs * (others["is_calibrated"] == 1)
        records["is_calibrated"][rows] = np.where(own == 1, own, of_preset * model.AS_PRESET)
    if carried.ceiling is not None:
        others = _find_others(carried.ceiling, sizes[rows])
        ceilings_us = np.where(others["active_sms"] > 0, others["latency_us"], np.inf)
    model.carry(records.view(model.KERNEL_COST_DTYPE), rows, sizes, factors, trusts, ceilings_us, carried.limits)


def _find_others(packed: Packed, sizes: Integers) -> Records:
    """Return the answers to other questions on the GEMMs and batches of sizes [num, 4]."""
    if len(sizes) != 1:
        return find_best_config_many([packed], np.zeros(len(sizes), np.int64), sizes)
    return _find_plain(packed, *sizes[0].tolist())


_A_HAIR = 1e-9


def behind_answer(corrected_us: Floats, answer_us: Floats) -> Floats:
    """Return corrected times of configs other than the answer, in their order, none less than the answer's."""
    return np.maximum(corrected_us, answer_us + _A_HAIR * corrected_us)


def _correct_others(packed: Packed, sizes: Integers, best: Records, records: Records) -> None:
    """Correct other configs of a GEMM as its best [1], or by factors of their own; none then comes before it."""
    factor = best["correction_factor"]
    if not best["active_sms"][0] or factor[0] == 1.0:
        return
    other_us = sum((records[name] for name in model.OTHER_KERNELS), np.zeros(len(records)))
    if packed.is_ranked:
        _correct(packed, np.arange(len(records)), np.repeat(sizes, len(records), axis=0), records)
        own_us = behind_answer(records["latency_us"], best["latency_us"])
        factor = (own_us - other_us) / (records["physics_us"] - other_us)
    for name in ("correction_trust", "is_calibrated"):
        records[name] = best[name]
    records["correction_factor"] = factor
    records["latency_us"] = other_us + (records["physics_us"] - other_us) * factor
