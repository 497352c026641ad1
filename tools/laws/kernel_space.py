"""List the whole space of kernel configs: all that a library has and a GPU can run, for a given problem."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidMappingError
from gemm_eval.jit import read_only
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu.candidates import (
    MIN_STAGES,
    RASTER_SWIZZLES,
    Resources,
    as_config,
    check_config,
)
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.libraries import (
    AUTO,
    HYPOTHETICAL,
    OURS,
    SplitRule,
    cluster_grid_sms,
    default_library,
    library_of,
)
from gemm_eval.models.gpu.packed import GPU_PARAMS_DTYPE
from gemm_eval.models.gpu.sizes import LOAD_BYTES, load_bytes_of, pad_problem
from gemm_eval.models.gpu.w4a16.candidates import (
    W4A16_SIZES,
    build_w4a16_candidates,
    check_w4a16_sizes,
    check_w4a16_types,
    config_of_row,
    has_our_kernels,
)
from gemm_eval.models.gpu.w4a16.shared_kernels import MAX_SPLITS, splits_of_row
from gemm_eval.workload import GemmProblem, distinct_groups

_FULL_GRID_CLUSTER = 2  # proposals in larger clusters leave a CTA free


class KernelChoice(NamedTuple):
    """A kernel of a library.

    Attributes:
        config: its data-parallel config.
        resources: what a CTA of it needs.
        splits: numbers of parts of K that the library makes, 1 for a whole K, ascending; none where it does not take
            the tile.
        has_stream_k: it can share k-steps evenly.
    """

    config: KernelConfig
    resources: Resources
    splits: Sequence[int]
    has_stream_k: bool


def library_for(arch: GpuSpec, problem: GemmProblem, library: str | None = None) -> str:
    """Return the library whose kernels run a problem: the one asked for, or what `auto` (None) stands for.

    Raises:
        UnsupportedError: our kernels were asked for, and do not run the problem.
    """
    if library in (None, AUTO):
        library = default_library(arch, problem.types)
    if library == AUTO:
        is_ours = has_our_kernels(arch, problem.types) and W4A16_SIZES.takes(*problem.sizes[1:])
        return OURS if is_ours else HYPOTHETICAL
    if library == OURS:
        library_of(library).check(arch, problem.types)
        check_w4a16_types(arch, problem.types)
        check_w4a16_sizes(problem)
    rules = library_of(str(library))
    of_rows = rules.of_rows(arch, problem.types, problem.G, problem.M)
    return str(library) if of_rows is rules else of_rows.name


def enumerate_kernels(arch: GpuSpec, problem: GemmProblem, library: str | None = None) -> Iterator[KernelChoice]:
    """Yield every tile, cluster and number of stages of a library that the GPU can run; not of our W4A16 kernels.

    Raises:
        UnsupportedError: GPU, types and library do not go together.
    """
    rules = library_of(library_for(arch, problem, library))
    padding = rules.padding(arch.sm_arch, problem.types)
    problem = pad_problem(problem, padding)
    load_bytes = load_bytes_of(problem, padding)
    if load_bytes != LOAD_BYTES[0] and not rules.runs_unaligned(problem.types):
        rules.check(arch, problem.types)
        return
    split_rule = rules.split_rule(arch, problem.types, load_bytes=load_bytes)
    for choice in dict.fromkeys(rules.tiles(arch, problem.types, load_bytes=load_bytes)):  # a tile may be listed twice
        for cluster in choice.clusters if FAMILIES[choice.family].has_clusters else ((1, 1),):
            for num_stages in range(MIN_STAGES, FAMILIES[choice.family].max_stages + 1):
                config = as_config(problem.types, choice, *cluster, num_stages)
                try:
                    resources = check_config(arch, problem, config)
                except InvalidMappingError:
                    continue
                splits = _splits(arch, problem, split_rule, config, resources)
                has_stream_k = rules.has_stream_k and config.schedule is not Schedule.VECTOR
                yield KernelChoice(config, resources, splits, has_stream_k)


def _has_ragged_step(problem: GemmProblem, config: KernelConfig) -> bool:
    """Return whether the last k-step is not full, of a kernel whose library has none such."""
    step_bytes = config.cta_k * problem.types.a.dtype.bits // 8
    return 0 < FAMILIES[config.family].least_step_bytes < step_bytes and problem.K % config.cta_k != 0


def _splits(
    arch: GpuSpec, problem: GemmProblem, rule: SplitRule, config: KernelConfig, resources: Resources
) -> Sequence[int]:
    """Into how many parts a library splits K: parts long enough, and all of them on the GPU at once."""
    family = FAMILIES[config.family]
    if not family.min_rows <= problem.M <= family.max_rows(config.cta_m):
        return range(0)
    if _has_ragged_step(problem, config):
        return range(0)
    if config.schedule is Schedule.VECTOR:
        return range(1, 2)  # K is split over threads
    tiles = problem.G * -(-problem.M // config.cta_m) * -(-problem.N // config.cta_n)
    steps = -(-problem.K // config.cta_k)
    by_length = min(steps // rule.min_steps, 1 if rule.is_lone and problem.G > 1 else rule.max_parts)
    cluster = config.cluster_m * config.cluster_n
    room = cluster_grid_sms(arch, cluster) * resources.ctas_per_sm - (cluster > _FULL_GRID_CLUSTER)
    room *= not rule.is_short or config.schedule is Schedule.MULTISTAGE
    most = max(1, min(by_length, room // tiles))
    if rule.is_even:
        return tuple(split for split in range(1, most + 1) if steps % split == 0)
    if not rule.is_full:
        return range(1, most + 1)
    if most == 1 and min(by_length, arch.num_sms // tiles) > 1:
        return range(0)  # another cluster lets K be split, and then this library does not take a whole K
    return range(most, most + 1)


def enumerate_configs(arch: GpuSpec, problem: GemmProblem, library: str | None = None) -> Iterator[KernelConfig]:
    """Yield every legal config for a problem: tiles, clusters, stages, split-K, stream-K and rasters, in that order.

    Splits are those that the library takes (its `SplitRule`), and no more than fit the GPU at once. The search of
    `gemm_eval.search.gpu` finds the best of all of these while it evaluates only some.

    Args:
        arch: the GPU.
        problem: sizes and data types.
        library: whose kernels; None: the default for the data types.

    Raises:
        UnsupportedError: GPU, types and library do not go together.
    """
    library = library_for(arch, problem, library)
    if library == OURS:
        yield from _our_configs(arch, problem)
        return
    for config, _, splits, has_stream_k in enumerate_kernels(arch, problem, library):
        ways = [(Decomposition.SPLIT_K if split > 1 else Decomposition.DATA_PARALLEL, split) for split in splits]
        ways += [(Decomposition.STREAM_K, 1)] if has_stream_k else []
        for decomposition, split_k in ways:
            for order in RasterOrder:
                for swizzle in RASTER_SWIZZLES:
                    yield config._replace(
                        decomposition=decomposition, split_k=split_k, raster_order=order, raster_swizzle=swizzle
                    )


def _our_configs(arch: GpuSpec, problem: GemmProblem) -> Iterator[KernelConfig]:
    """Our W4A16 kernels, each with all its ways to cut K."""
    params = np.zeros(1, GPU_PARAMS_DTYPE)
    params["num_sms"] = arch.num_sms
    params, candidates = read_only(params), read_only(build_w4a16_candidates(arch, problem.types))
    splits = np.empty(MAX_SPLITS, np.int64)
    groups = distinct_groups(problem.row_groups, problem.G, problem.M)
    for place in range(len(candidates)):
        num = splits_of_row(params, candidates, place, problem.K, problem.N, *groups, splits)
        yield from (config_of_row(candidates[place], split) for split in splits[:num].tolist())
