"""Random multi-core chips, problems and mappings, without Hypothesis: small enough for brute force."""

import dataclasses
import random
from typing import Any

from gemm_eval import GemmProblem, MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions
from gemm_eval.models.multicore.cost_kernels import block_of

_DTYPES = (DType.FP32, DType.BF16, DType.FP16, DType.FP8, DType.INT8, DType.INT4, DType.BFP8, DType.BFP4)
_PARTIAL = (DType.FP32, DType.BF16, DType.FP8, DType.BFP8)
_NARROW = (DType.INT4, DType.INT8, DType.FP8)


def _speed(rng: random.Random, low: float, high: float) -> float:
    """Round numbers, which make ties, and arbitrary ones."""
    return rng.choice((low, high, (low + high) / 2)) if rng.random() < 0.5 else rng.uniform(low, high)


def draw_chip(rng: random.Random) -> MulticoreSpec:
    """A chip of 1 to 12 cores; every option of the spec is drawn."""
    dtypes = rng.sample(_DTYPES, rng.randint(1, 3))
    timing = rng.choice(("overlap", "overlap", "pipeline"))
    sharing, reduction = rng.choice(("private", "multicast")), rng.choice(("none", "dram", "noc"))
    dequant = rng.choice(("none", "vector", "inline"))
    has_noc = sharing == "multicast" or reduction == "noc" or rng.random() < 0.3
    has_vector = reduction != "none" or dequant == "vector"
    fields: dict[str, Any] = {
        "name": "drawn",
        "num_cores": rng.choice((1, 2, 3, 4, 6, 8, 12)),
        "frequency_ghz": _speed(rng, 0.5, 2.0),
        "cube_m": rng.choice((1, 2, 4, 5)),
        "cube_k": rng.choice((1, 2, 4, 3)),
        "cube_n": rng.choice((1, 2, 4, 7)),
        "cube_steps_per_cycle": {dtype: _speed(rng, 0.125, 2.0) for dtype in dtypes},
        "fill_drain_cycles": rng.choice((0, 0, 1, 7, 32)),
        "default_dtype": dtypes[0],
        "sram_bytes": rng.choice((64, 128, 256, 512, 1024, 4096, 65536)) + rng.randint(-5, 100),
        "sram_usable_frac": rng.choice((1.0, 0.9375)),
        "input_buffers": 2 if timing == "pipeline" else rng.choice((1, 2, 2)),
        "output_buffers": rng.choice((1, 2)),
        "tile_buffers": rng.choice(({}, {}, {}, {"A": 1, "C": 0}, {"B": 1}, {"A": 2, "B": 1, "C": 2})),
        "lane_num": rng.choice((1, 1, 3, 8)),
        "align_bytes": rng.choice((1, 1, 4, 16)),
        "dram_gb_per_s": _speed(rng, 0.5, 128.0),
        "dram_efficiency_frac": rng.choice((1.0, 0.77)),
        "dram_sharing": rng.choice(("static", "fair")),
        "dram_core_limit_gb_per_s": rng.choice((None, _speed(rng, 0.25, 16.0))),
        "load_sharing": sharing,
        "noc_gb_per_s": _speed(rng, 0.5, 64.0) if has_noc else None,
        "reduction": reduction,
        "vector_ops_per_cycle": _speed(rng, 0.5, 64.0) if has_vector else None,
        "vector_is_concurrent": rng.random() < 0.5,
        "dequant": dequant,
        "dequant_ops_per_elem": _speed(rng, 0.5, 4.0) if dequant == "vector" else None,
        "timing": timing,
        "overlap_frac": rng.choice((1.0, 1.0, 0.95, 0.5, 0.0)),
        "launch_us": rng.choice((0.0, 0.0, 0.1)),
        "task_us": rng.choice((0.0, 0.0, 0.05, 1.0)),
        "cube_k_by_dtype": {dtype: rng.choice((1, 2, 6, 8)) for dtype in dtypes if rng.random() < 0.25},
        "mac_pj": {dtype: _speed(rng, 0.1, 2.0) for dtype in dtypes},
        "sram_pj_per_byte": _speed(rng, 0.1, 3.0),
        "dram_pj_per_byte": _speed(rng, 1.0, 64.0),
        "noc_pj_per_byte": _speed(rng, 0.1, 8.0) if has_noc else None,
        "static_w": rng.choice((0.0, 0.3)),
    }
    if timing == "overlap" and rng.random() < 0.5:
        if rng.random() < 0.6:
            fields |= {
                "shared_bytes": rng.choice((1, 64, 500, 2048, 20000, 1 << 20)),
                "shared_gb_per_s": _speed(rng, 0.5, 128.0),
            }
        fields["dram_write_gb_per_s"] = rng.choice((None, _speed(rng, 0.25, 256.0)))
        fields["feed_bytes_per_cycle"] = rng.choice((None, _speed(rng, 1.0, 128.0)))
        operands = "ABC" if has_noc else "C"
        fields["resident"] = tuple(rng.sample(operands, rng.randint(0, len(operands))))
        fields["resident_max_frac"] = rng.choice((1.0, 0.5, 0.1))
    if rng.random() < 0.5:
        fields["weight_load_cycles"] = rng.choice((0.0, 1.0, 7.5, 64.0))
        fields["load_clock_frac"] = {dtype: rng.choice((0.9, 0.5)) for dtype in dtypes if rng.random() < 0.5}
        fields["partial_dtype"] = {dtype: rng.choice(_PARTIAL) for dtype in dtypes if rng.random() < 0.5}
        fields["launch_floor_us"] = rng.choice((0.0, 1.0, 30.0))
    if rng.random() < 0.3:
        packings = ({"A": "shared", "B": "private"}, {"A": "private", "B": "shared"}, {"A": "shared"}, {"B": "private"})
        fields["packs"], fields["pack_gb_per_s"] = rng.choice(packings), _speed(rng, 0.25, 64.0)
        fields["pack_near_bytes"] = rng.choice((None, rng.randint(1, 300)))
        fields["sync_us"] = rng.choice((0.0, 0.3, 2.0))
    return MulticoreSpec(**fields)


def draw_problem(rng: random.Random, arch: MulticoreSpec, most_units: int = 5) -> GemmProblem:
    """A GEMM of at most `most_units` cubes in each dimension, dense or with narrower weights."""
    a = rng.choice(sorted(arch.cube_steps_per_cycle))
    narrow = [dtype for dtype in _NARROW if dtype.bits < a.bits]
    weights: dict[str, Any] = {}
    if arch.dequant != "none" and narrow and rng.random() < 0.5:
        weights = {
            "weight_dtype": rng.choice(narrow),
            "group_size": rng.choice((None, 1, 2, 3, 4, 8)),
            "scale_dtype": rng.choice((None, DType.FP16, DType.FP32)),
            "zero_dtype": rng.choice((None, DType.INT4, DType.FP16)),
        }
    units = min(most_units, rng.choice((2, 3, 5)))
    sizes = (arch.cube_m, arch.cube_k_of(a), arch.cube_n)
    M, K, N = (max(1, unit * rng.randint(1, units) + rng.choice((0, 0, -1, 1, -unit // 2))) for unit in sizes)
    return GemmProblem(rng.choice((1, 1, 1, 2, 3, 5)), M, K, N, a, output_dtype=rng.choice((None, *_DTYPES)), **weights)


def draw_grouped(rng: random.Random, arch: MulticoreSpec) -> GemmProblem:
    """A grouped GEMM of up to 8 groups, of sizes and types as `draw_problem`: none of rows, one, equally many, any."""
    like = draw_problem(rng, arch)
    groups = [rng.choice((0, 1, like.M, rng.randint(0, like.M))) for _ in range(rng.randint(1, 8))]
    if not any(groups):
        groups[0] = like.M
    types = {field.name: getattr(like, field.name) for field in dataclasses.fields(like)[4:-2]}
    return GemmProblem.grouped(groups, like.K, like.N, **types)


def legal_sizes(block: int, unit: int) -> list[int]:
    """Tile sizes of a dimension."""
    return [*range(unit, block, unit), block]


def draw_mapping(rng: random.Random, arch: MulticoreSpec, problem: GemmProblem, params: Any) -> MulticoreMapping:
    """A mapping, also with idle cores, that keeps every rule but maybe that of SRAM."""
    rows = enumerate_partitions(arch.num_cores, allow_idle_cores=True)
    while True:  # one core is always among them
        partition = Partition(*rng.choice(rows).tolist())
        block = block_of(params[0], *problem.sizes, *partition)
        if block.E_K == 1 or arch.reduction != "none":
            break
    units = ((block.m, arch.cube_m), (block.n, arch.cube_n), (block.k, int(params["unit_k"][0])))
    tile = Tile(*(int(rng.choice(legal_sizes(size, unit))) for size, unit in units))
    return MulticoreMapping(partition, tile, rng.choice(tuple(LoopOrder)))
