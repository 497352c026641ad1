"""Chips of every kind, random GEMMs for them, and the laws that every answer obeys."""

import dataclasses
import math
import random
from functools import cache
from typing import Any

import pytest

from gemm_eval import DType, GEMMEvaluator, GemmProblem, GEMMResult, load_arch

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "demo": ("demo-8core", {}),
    "pipeline": ("demo-8core", {"timing": "pipeline"}),
    "pipeline-2": ("demo-8core", {"timing": "pipeline", "output_buffers": 2, "reduction": "dram"}),
    "private": ("demo-8core", {"load_sharing": "private", "reduction": "dram", "noc_gb_per_s": None}),
    "static": ("demo-8core", {"dram_sharing": "static", "num_cores": 12, "overlap_frac": 0.5, "sram_bytes": 262144}),
    "no-split": ("demo-8core", {"reduction": "none", "dequant": "inline", "num_cores": 7, "input_buffers": 1}),
    "serial": ("demo-8core", {"vector_is_concurrent": False, "vector_ops_per_cycle": 4.0, "mac_pj": {}}),
    "sg2260e": ("sg2260e", {}),
    "tpu-v4": ("tpu-v4", {}),
}  # fmt: skip


@cache
def evaluator(variant: str) -> GEMMEvaluator:
    name, changes = VARIANTS[variant]
    return GEMMEvaluator(load_arch(name).with_(**changes), policy="best")  # `top` and laws are of the exact search


def random_problems(variant: str, count: int) -> list[GemmProblem]:
    """Sizes from 1 to thousands, next to powers of two and primes; every type that the arch takes."""
    rng = random.Random(f"{variant} gemms")
    arch = evaluator(variant).arch

    def size(limit: int) -> int:
        return max(1, min(limit, round(2 ** rng.uniform(0, math.log2(limit))) + rng.choice((-1, 0, 0, 1))))

    problems = []
    while len(problems) < count:
        a = rng.choice(list(arch.cube_steps_per_cycle))
        types: dict[str, Any] = {"input_dtype": a, "output_dtype": rng.choice([None, DType.FP32, DType.FP16])}
        narrow = [b for b in (DType.INT4, DType.INT8, DType.FP8) if b.bits < a.bits]
        if narrow and arch.dequant != "none" and rng.random() < 0.5:
            types |= {"weight_dtype": rng.choice(narrow), "group_size": rng.choice([None, 32, 128, 100])}
            types["zero_dtype"] = rng.choice([None, DType.INT4, DType.FP16])
        if len(problems) % 6 == 5:  # groups, of which some have no row
            groups = [rng.choice([0, size(512)]) for _ in range(rng.randint(1, 8))]
            problems.append(GemmProblem.grouped([*groups, size(512)], size(2048), size(2048), **types))
        else:
            problems.append(GemmProblem(rng.choice([1, 1, 2, 7, 32]), size(4096), size(8192), size(8192), **types))
    return problems


def compulsory_bytes(p: GemmProblem) -> int:
    num_rows, num_active = p.G * p.M, p.G
    if p.row_groups:
        num_rows, num_active = sum(p.row_groups), sum(num > 0 for num in p.row_groups)
    weight_bits = p.K * p.N * p.weight_dtype.bits  # type: ignore[union-attr]
    if p.scale_dtype is not None:
        group = p.group_size or p.K
        weight_bits += -(-p.K // group) * p.N * (p.scale_dtype.bits + (p.zero_dtype.bits if p.zero_dtype else 0))
    row_bits = p.K * p.input_dtype.bits + p.N * p.output_dtype.bits  # type: ignore[union-attr]
    return math.ceil((num_rows * row_bits + num_active * weight_bits) / 8)


def check(r: GEMMResult, ev: GEMMEvaluator) -> None:
    """Laws that every answer obeys."""
    arch, p = ev.arch, r.problem
    assert math.isfinite(r.latency_us)
    assert r.latency_us > 0
    assert sum(r.breakdown.values()) == pytest.approx(r.latency_us, rel=1e-9)
    assert sum(r.traffic.values()) == r.dram_bytes
    assert min(r.traffic.values()) >= 0
    assert compulsory_bytes(p) <= r.dram_bytes
    assert all(us >= 0 for name, us in r.breakdown.items() if name not in ("hidden_us", "correction_us"))
    assert 0 < r.utilization_frac <= 1 + 1e-9
    assert r.utilization_frac == pytest.approx(r.tflop_per_s / arch.peak_tflop_per_s(p.input_dtype), rel=1e-12)
    slack = 1 + 1e-6  # a pipeline counts unrounded bytes
    needed = arch.launch_us + sum(us for name, us in r.breakdown.items() if name.startswith("reduction"))
    assert r.physics_us * slack >= needed + max(r.compute_us, r.dram_us) * (1 - 1e-6)
    assert r.physics_us * slack >= compulsory_bytes(p) / (arch.dram_gb_per_s * 1e3 * arch.dram_efficiency_frac)
    assert r.dram_bytes <= arch.dram_gb_per_s * slack * 1e3 * r.physics_us
    assert r.flop == p.flop
    assert 0 < r.sram_used_bytes <= arch.sram_usable_bytes
    assert 1 <= r.active_cores <= math.prod(r.mapping.partition) <= arch.num_cores
    assert all(size >= 1 for size in r.mapping.tile)
    assert r.bound in ("compute", "vector", "dram", "shared", "noc", "feed", "reduction", "launch")
    assert r.energy_pj is None or (math.isfinite(r.energy_pj) and r.energy_pj > 0)
    assert (r.source, r.model_version, r.arch_name) == (
        "corrected" if r.breakdown["correction_us"] else "calibrated" if arch.calibration else "analytic",
        "multicore-4",
        arch.name,
    )


def same_cost(a: GEMMResult, b: GEMMResult) -> bool:
    """Equal to the bit in all that a mapping decides."""
    skip = {"is_exhaustive", "num_candidates", "num_refused", "_evaluator"}
    return all(getattr(a, f.name) == getattr(b, f.name) for f in dataclasses.fields(a) if f.name not in skip)
