"""Hypothesis strategies: small chips, problems and mappings, biased to where mistakes hide; and GPUs with theirs.

Those of multi-core chips are the draws of `tools.laws.multicore_draws`, small enough for brute force: ones, primes and
sizes next to multiples of the cube are frequent, and SRAM goes from too small for any tile to large enough for blocks.
"""

import dataclasses
from typing import Any

from hypothesis import strategies as st

from gemm_eval.arch import SM_ARCHS, GpuSpec, MulticoreSpec, list_archs, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.mapping import MulticoreMapping
from gemm_eval.models.gpu.sizes import load_bytes_of
from gemm_eval.models.multicore import pack_params, params_in_room
from gemm_eval.workload import LAYOUTS, GemmProblem, RunOptions
from tests.oracle import naive
from tools.laws.multicore import PLAIN
from tools.laws.multicore_draws import draw_chip, draw_grouped, draw_mapping, draw_problem

NARROW_DTYPES = (DType.INT4, DType.INT8, DType.FP8, DType.FP4)
_RANDOMS = st.randoms(use_true_random=True)


@st.composite
def archs(draw: st.DrawFn, *, max_cores: int = 12, has_memories: bool = True) -> MulticoreSpec:
    """Chips of 1 to `max_cores` cores; without `has_memories` none that overlap timing alone knows."""
    arch = draw_chip(draw(_RANDOMS))
    changes = PLAIN if not has_memories else {}
    unknown = draw(st.sampled_from(({}, {}, {"dram_pj_per_byte": None}, {"noc_pj_per_byte": None})))  # no energy
    return arch.with_(num_cores=min(arch.num_cores, max_cores), **changes, **unknown)


def problems(arch: MulticoreSpec, *, most_units: int = 5) -> st.SearchStrategy[GemmProblem]:
    """GEMMs that `arch` can run, of about `most_units` cubes in each of M, K and N."""
    return _RANDOMS.map(lambda rng: draw_problem(rng, arch, most_units))


def grouped_problems(arch: MulticoreSpec) -> st.SearchStrategy[GemmProblem]:
    """Grouped GEMMs of the sizes of `problems`, of up to 8 groups: without rows, equal, of one row, or any."""
    return _RANDOMS.map(lambda rng: draw_grouped(rng, arch))


@st.composite
def mappings(draw: st.DrawFn, arch: MulticoreSpec, problem: GemmProblem) -> MulticoreMapping:
    """Mappings, also with idle cores, that keep every rule but maybe that of SRAM; most of them fit where any does."""
    rng, params = draw(_RANDOMS), params_in_room(pack_params(arch, problem.types), problem)
    drawn = [draw_mapping(rng, arch, problem, params) for _ in range(draw(st.sampled_from((1, 20, 20, 20))))]
    return next((mapping for mapping in drawn if naive.is_legal(arch, problem, mapping)), drawn[-1])


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
