"""Hypothesis strategies: small chips, problems and mappings, biased to where mistakes hide; and GPUs with theirs.

Sizes for multi-core chips are small enough for brute force, and drawn next to multiples of the cube; ones and primes
are frequent. SRAM goes from too small for any tile to large enough for whole blocks, so that its limit bites in most
draws.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from gemm_eval.arch import SM_ARCHS, GpuSpec, MulticoreSpec, list_archs, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions
from gemm_eval.models.gpu.sizes import load_bytes_of
from gemm_eval.workload import LAYOUTS, GemmProblem, RunOptions
from tests.oracle import naive

MAX_SIZE = 40
"""Largest M, K or N of a problem."""

INPUT_DTYPES = tuple(dtype for dtype in DType if dtype.is_operand)
OUTPUT_DTYPES = tuple(dtype for dtype in DType if dtype is not DType.E8M0)
NARROW_DTYPES = (DType.INT4, DType.INT8, DType.FP8, DType.FP4)
PRIMES = tuple(n for n in range(2, MAX_SIZE) if all(n % d for d in range(2, n)))


def _speeds(low: float, high: float) -> st.SearchStrategy[float]:
    """Round numbers, which make ties, and arbitrary ones, which show every change in the order of operations."""
    round_numbers = [x for x in (0.25, 0.5, 1.0, 2.0, 3.0, 8.0, 16.0, 64.0, 128.0) if low <= x <= high]
    return st.sampled_from(round_numbers) | st.floats(low, high)


@st.composite
def archs(draw: st.DrawFn, *, max_cores: int = 12, has_memories: bool = True) -> MulticoreSpec:
    """Chips of 1 to `max_cores` cores with cube dims of 1 to 8; every option of the spec is drawn.

    Without `has_memories` none that overlap timing alone knows.
    """
    cube_dims = st.sampled_from((1, 2, 4, 8)) | st.integers(1, 8)
    dtypes = draw(st.lists(st.sampled_from(INPUT_DTYPES), min_size=1, max_size=4, unique=True))
    timing = draw(st.sampled_from(("overlap", "pipeline")))
    load_sharing = draw(st.sampled_from(("private", "multicast")))
    reduction = draw(st.sampled_from(("none", "dram", "noc")))
    dequant = draw(st.sampled_from(("none", "vector", "inline")))
    needs_noc = load_sharing == "multicast" or reduction == "noc"
    needs_vector = reduction != "none" or dequant == "vector"
    energies = draw(st.sampled_from(("none", "all", "all", "no noc", "no mac")))
    fields: dict[str, Any] = {
        "name": "drawn",
        "num_cores": draw(st.sampled_from([n for n in (1, 4, 6, 8, 12) if n <= max_cores]) | st.integers(1, max_cores)),
        "frequency_ghz": draw(_speeds(0.3, 3.0)),
        "cube_m": draw(cube_dims),
        "cube_k": draw(cube_dims),
        "cube_n": draw(cube_dims),
        "cube_k_by_dtype": {dtype: draw(cube_dims) for dtype in dtypes if draw(st.integers(0, 3)) == 0},
        "cube_steps_per_cycle": {dtype: draw(_speeds(0.1, 2.0)) for dtype in dtypes},
        "fill_drain_cycles": draw(st.sampled_from((0, 0, 1, 7, 32))),
        "default_dtype": dtypes[0],
        "sram_bytes": max(
            1, draw(st.sampled_from((1024, 3, 128, 256, 512, 700, 2048, 4096, 8192, 65536))) + draw(_JITTER)
        ),
        "sram_usable_frac": draw(st.sampled_from((1.0, 1.0, 0.9375, 0.7))),
        "input_buffers": 2 if timing == "pipeline" else draw(st.sampled_from((1, 2))),
        "output_buffers": draw(st.sampled_from((1, 2))),
        "lane_num": draw(st.sampled_from((1, 1, 2, 3, 8))),
        "align_bytes": draw(st.sampled_from((1, 1, 4, 6, 16))),
        "dram_gb_per_s": draw(_speeds(0.5, 128.0)),
        "dram_efficiency_frac": draw(st.sampled_from((1.0, 0.9, 0.77))),
        "dram_sharing": draw(st.sampled_from(("static", "fair"))),
        "dram_core_limit_gb_per_s": draw(st.none() | _speeds(0.25, 16.0)),
        "load_sharing": load_sharing,
        "noc_gb_per_s": draw(_speeds(0.5, 64.0) if needs_noc else st.none() | _speeds(0.5, 64.0)),
        "reduction": reduction,
        "vector_ops_per_cycle": draw(_speeds(0.5, 64.0) if needs_vector else st.none() | _speeds(0.5, 64.0)),
        "vector_is_concurrent": draw(st.booleans()),
        "dequant": dequant,
        "dequant_ops_per_elem": draw(_speeds(0.5, 4.0)) if dequant == "vector" else None,
        "timing": timing,
        "overlap_frac": draw(st.sampled_from((1.0, 0.95, 0.5, 0.0))),
        "launch_us": draw(st.sampled_from((0.0, 0.0, 2.0, 0.1))),
    }
    if timing == "overlap" and has_memories:
        fields |= draw(_memories(has_noc=fields["noc_gb_per_s"] is not None))
    fields["weight_load_cycles"] = draw(st.sampled_from((0.0, 0.0, 0.0, 1.0, 7.5, 64.0)))
    fields["load_clock_frac"] = {dtype: draw(st.sampled_from((0.9, 0.5))) for dtype in dtypes if draw(_RARELY)}
    fields["partial_dtype"] = {dtype: draw(st.sampled_from(PARTIAL_DTYPES)) for dtype in dtypes if draw(_RARELY)}
    if packs := draw(_PACKS):
        fields["packs"], fields["pack_gb_per_s"] = packs, draw(_speeds(0.25, 64.0))
        fields["pack_near_bytes"] = draw(st.none() | st.integers(1, 300))
    fields["sync_us"] = draw(st.sampled_from((0.0, 0.0, 0.0, 0.3, 2.0)))
    fields["task_us"] = draw(st.sampled_from((0.0, 0.0, 0.3, 5.0)))
    fields["launch_floor_us"] = draw(st.sampled_from((0.0, 0.0, 0.0, 1.0, 30.0)))
    if energies != "none":
        fields["mac_pj"] = {} if energies == "no mac" else {dtype: draw(_speeds(0.1, 2.0)) for dtype in dtypes}
        fields["sram_pj_per_byte"] = draw(_speeds(0.1, 3.0))
        fields["dram_pj_per_byte"] = draw(_speeds(1.0, 64.0))
        fields["noc_pj_per_byte"] = None if energies == "no noc" else draw(_speeds(0.1, 8.0))
        fields["static_w"] = draw(st.sampled_from((0.0, 1.0, 0.3)))
    return MulticoreSpec(**fields)


PARTIAL_DTYPES = (DType.FP32, DType.BF16, DType.FP8, DType.BFP8)
_RARELY = st.sampled_from((False, False, False, True))


@st.composite
def _memories(draw: st.DrawFn, *, has_noc: bool) -> dict[str, Any]:
    """Fields of overlap timing alone: none in half of the draws."""
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        return fields
    if draw(st.booleans()):
        fields["shared_bytes"] = draw(st.sampled_from((1, 64, 500, 2048, 20000, 1 << 20)))
        fields["shared_gb_per_s"] = draw(_speeds(0.5, 128.0))
    if draw(st.booleans()):
        fields["dram_write_gb_per_s"] = draw(_speeds(0.25, 256.0))
    if draw(st.booleans()):
        fields["feed_bytes_per_cycle"] = draw(_speeds(1.0, 128.0))
    operands = ("A", "B", "C") if has_noc else ("C",)
    fields["resident"] = tuple(draw(st.lists(st.sampled_from(operands), max_size=3, unique=True)))
    fields["resident_max_frac"] = draw(st.sampled_from((1.0, 1.0, 0.5, 0.1)))
    return fields


_PACKS = st.sampled_from(
    ({}, {}, {"A": "shared"}, {"B": "private"}, {"A": "shared", "B": "private"}, {"A": "private", "B": "shared"})
)
_JITTER = st.integers(-5, 5) | st.integers(0, 200)


@st.composite
def problems(draw: st.DrawFn, arch: MulticoreSpec, *, max_units: int | None = None) -> GemmProblem:
    """GEMMs that `arch` can run, of at most `max_units` cubes and `MAX_SIZE` elements in each of M, K and N.

    By default `max_units` lets a brute-force search end in a second or so: a pipeline has to be walked visit by visit.
    """
    if max_units is None:
        max_units = 4 if arch.timing == "pipeline" else 7
    a = draw(st.sampled_from(sorted(arch.cube_steps_per_cycle)))
    narrow = [dtype for dtype in NARROW_DTYPES if dtype.bits < a.bits]
    quantized: dict[str, Any] = {}
    if arch.dequant != "none" and narrow and draw(st.booleans()):
        quantized = {
            "weight_dtype": draw(st.sampled_from(narrow)),
            "group_size": draw(st.none() | st.sampled_from((1, 2, 3, 4, 5, 7, 8, 16, 64))),
            "scale_dtype": draw(st.none() | st.sampled_from((DType.FP16, DType.FP32, DType.FP8, DType.E8M0))),
            "zero_dtype": draw(st.none() | st.sampled_from((DType.INT4, DType.INT8, DType.FP16))),
        }
    return GemmProblem(
        G=draw(st.sampled_from((1, 1, 2, 3, 4, 5))),  # 5 in three parts is 2, 2, 1
        M=draw(_sizes(arch.cube_m, max_units)),
        K=draw(_sizes(arch.cube_k_of(a), max_units)),
        N=draw(_sizes(arch.cube_n, max_units)),
        input_dtype=a,
        output_dtype=draw(st.none() | st.sampled_from(OUTPUT_DTYPES)),
        **quantized,
    )


@st.composite
def grouped_problems(draw: st.DrawFn, arch: MulticoreSpec, *, max_units: int | None = None) -> GemmProblem:
    """Grouped GEMMs of the sizes of `problems`, of up to 7 groups: without rows, equal, of one row, or any."""
    like = draw(problems(arch, max_units=max_units))
    rows = st.sampled_from((0, 1, like.M, like.M)) | st.integers(0, like.M)
    groups = draw(st.lists(rows, min_size=1, max_size=7).filter(any))
    types = {field.name: getattr(like, field.name) for field in dataclasses.fields(like)[4:-2]}
    return GemmProblem.grouped(groups, like.K, like.N, **types)


def _sizes(unit: int, max_units: int) -> st.SearchStrategy[int]:
    largest = min(MAX_SIZE, max_units * unit)
    edges = [size + d for size in range(0, largest + 1, unit) for d in (-1, 0, 1) if 1 <= size + d <= largest]
    choices = [st.sampled_from(edges), st.integers(1, largest), st.integers((largest + 1) // 2, largest), st.just(1)]
    primes = [prime for prime in PRIMES if prime <= largest]
    return st.one_of(*choices, *([st.sampled_from(primes)] if primes else []))


@st.composite
def mappings(draw: st.DrawFn, arch: MulticoreSpec, problem: GemmProblem) -> MulticoreMapping:
    """Mappings, also with idle cores, that keep every rule but maybe that of SRAM."""
    rows = enumerate_partitions(arch.num_cores, allow_idle_cores=draw(st.booleans())).tolist()
    partitions = [Partition(*row) for row in rows]
    if arch.reduction == "none":  # a K that is too short to be split may have P_K > 1 nevertheless
        partitions = [p for p in partitions if naive.full_block(problem, p).k == problem.K]
    partition = draw(st.sampled_from(partitions))
    block, units = naive.full_block(problem, partition), naive.units_of(arch, problem)
    sizes = [naive.legal_tile_sizes(b, unit) for b, unit in zip((block.m, block.n, block.k), units, strict=True)]
    must_fit = draw(st.integers(0, 3)) > 0  # else nearly all drawn tiles would be too large
    tile = [choices[0] for choices in sizes]
    for dimension in draw(st.permutations(range(3))):
        candidates = [[*tile[:dimension], size, *tile[dimension + 1 :]] for size in sizes[dimension]]
        if must_fit:
            limit = arch.sram_usable_bytes
            fitting = [c for c in candidates if naive.sram_used_bytes(arch, problem, Tile(*c)) <= limit]
            candidates = fitting or candidates
        tile = draw(st.sampled_from(candidates))
    return MulticoreMapping(partition, Tile(*tile), draw(st.sampled_from(LoopOrder)))


# --- GPUs ------------------------------------------------------------------------------------------------------------

GPUS = tuple(arch for arch in map(load_arch, list_archs()) if isinstance(arch, GpuSpec) and arch.sm_arch in SM_ARCHS)
"""All presets of NVIDIA's GPUs."""

_GPU_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 14336)
_TOKENS = (1, 2, 4, 8, 16, 17, 32, 64)


def _gpu_sizes(largest_log2: int) -> st.SearchStrategy[int]:
    """Round sizes, sizes next to them, and any size; small and large ones are equally frequent."""
    near = st.builds(lambda size, d: size + d, st.sampled_from(_GPU_SIZES), st.sampled_from((-1, 1, 8, -8, 16)))
    log2 = st.floats(0.0, largest_log2).map(lambda x: int(2.0**x))
    return st.one_of(st.sampled_from(_GPU_SIZES), near, log2)


@st.composite
def gpu_problems(draw: st.DrawFn, arch: GpuSpec, *, quantized: bool | None = None) -> GemmProblem:
    """GEMMs that some library runs on `arch`; `quantized` says whether weights must be, or must not be."""
    known = sorted({*arch.tensor_flop_per_cycle, DType.FP32})
    types: dict[str, Any] = {"input_dtype": draw(st.sampled_from(known))}
    if draw(st.booleans()) if quantized is None else quantized:
        types = {
            "input_dtype": draw(
                st.sampled_from([d for d in (DType.FP16, DType.BF16) if d in arch.tensor_flop_per_cycle])
            ),
            "weight_dtype": draw(st.sampled_from(NARROW_DTYPES)),
            "group_size": draw(st.sampled_from((None, 16, 32, 64, 128))),
            "zero_dtype": draw(st.sampled_from((None, None, DType.INT4, DType.FP16))),
            "group_n": draw(st.sampled_from((1, 1, 1, 3, 128))),
        }
    elif types["input_dtype"].is_block_scaled and draw(st.booleans()):
        types["group_size"] = draw(st.sampled_from((16, 32, 100, 128)))
        types["scale_dtype"] = draw(st.sampled_from((None, DType.FP32, DType.FP8, DType.E8M0)))
        types["group_n"] = draw(st.sampled_from((1, 3, 128)))
    elif types["input_dtype"] is DType.FP8:
        types["accumulate"] = draw(st.sampled_from((None, "full")))
    elif types["input_dtype"].bits >= 16:
        types["layout"] = draw(st.sampled_from(LAYOUTS))
    problem = GemmProblem(
        G=draw(st.sampled_from((1, 1, 1, 2, 3, 8, 40))),
        M=draw(st.sampled_from(_TOKENS) | _gpu_sizes(13)),
        K=draw(_gpu_sizes(14)),
        N=draw(_gpu_sizes(14)),
        **types,
    )
    if problem.types.is_block_scaled or problem.input_dtype is DType.FP4:  # only rows that start on 16 bytes
        return dataclasses.replace(problem, K=-(-problem.K // 32) * 32, N=-(-problem.N // 8) * 8)
    if problem.input_dtype is DType.INT8 and arch.sm_arch in ("sm_100", "sm_103"):  # padded further than elsewhere
        return dataclasses.replace(problem, K=-(-problem.K // 16) * 16, N=-(-problem.N // 16) * 16)
    return problem


@st.composite
def gpu_options(draw: st.DrawFn, problem: GemmProblem) -> RunOptions:
    """A library that takes the types of `problem`, states of L2 and clocks, and what A was before it was quantized.

    Answers are those of the terms: nothing is corrected.
    """
    libraries = ("hypothetical", "auto", None) if problem.is_weight_quantized else ("cublas", None)
    if problem.is_weight_quantized or (problem.types.is_block_scaled and load_bytes_of(problem) == 16):
        libraries += ("trtllm",)
    sources = (None, "bf16", "fp16", "fp32") if problem.input_dtype.bits < DType.FP16.bits else (None,)
    return RunOptions(
        draw(st.sampled_from(libraries)),
        draw(st.sampled_from(("cold", "cold-all", "warm"))),
        draw(st.sampled_from(("burst", "sustained"))),
        draw(st.sampled_from(sources)),
        correction=False,
    )


@st.composite
def gpu_cases(
    draw: st.DrawFn, archs: tuple[GpuSpec, ...] = GPUS, *, quantized: bool | None = None
) -> tuple[GpuSpec, GemmProblem, RunOptions]:
    """A GPU, a problem that it can run, and options."""
    arch = draw(st.sampled_from(archs))
    problem = draw(gpu_problems(arch, quantized=quantized))
    return arch, problem, draw(gpu_options(problem))
