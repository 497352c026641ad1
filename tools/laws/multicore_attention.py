"""Laws of fused attention on multi-core chips, on random chips and problems: MODEL.md, "Fused attention".

The search is compared with brute force over every mapping, the cost of a mapping with the oracle, which walks visits,
and costs and answers with what physics says of them.
"""

import dataclasses
import itertools
import random
from typing import Any

import numpy as np

from gemm_eval import AttentionProblem, InfeasibleError, MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.mapping import AttentionMapping
from gemm_eval.models.multicore import (
    ATTENTION_COST_DTYPE,
    MulticoreCost,
    attention_params,
    attention_sizes,
    evaluate_attention_mapping,
    unpack_attention_cost,
)
from gemm_eval.search import find_best_fused_attention
from tests.oracle.naive_attention import Attention, mappings, num_pairs
from tools.laws.multicore_draws import draw_chip
from tools.laws.report import Report

ROUNDING = 1e-12
MAX_MAPPINGS = 3_000
"""Larger spaces are left out."""
_FLOATS = (DType.FP32, DType.BF16, DType.FP16, DType.FP8, DType.BFP8)
_NARROW = (DType.FP8, DType.INT8, DType.INT4, DType.FP4)
_SAME = (
    "latency_us", "busiest_core_bytes", "active_cores", "visits", "sram_used_bytes", "dram_bytes", "q_bytes",
    "kv_bytes", "o_store_bytes", "o_spill_bytes", "reduction_bytes", "scores",
)  # fmt: skip


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random problems."""
    rng, report = random.Random(seed), Report()
    for _ in range(count):
        arch = draw_attention_chip(rng)
        case = _Case(arch, draw_attention(rng, arch), rng, report)
        case.check_search()
        case.check_mapping()
        case.check_masks()
        case.check_same_work()
        case.check_more_hardware()
        case.check_narrow()
    return report


def draw_attention_chip(rng: random.Random) -> MulticoreSpec:
    """A chip with a vector unit that multiplies a type of floats; every option of the spec is drawn."""
    while True:
        arch = draw_chip(rng)
        if arch.vector_ops_per_cycle is None:
            arch = arch.with_(vector_ops_per_cycle=rng.choice((0.5, 8.0, 64.0)))
        if any(dtype in _FLOATS for dtype in arch.cube_steps_per_cycle):
            sram_bytes = arch.sram_bytes * rng.choice((1, 2, 5))
            return arch.with_(sram_bytes=sram_bytes, exp_ops_per_elem=rng.choice((8.0, 1.0, 3.7)))


def draw_attention(rng: random.Random, arch: MulticoreSpec) -> AttentionProblem:
    """Attention of a few tiles, of every kind."""
    dtype = rng.choice([dtype for dtype in sorted(arch.cube_steps_per_cycle) if dtype in _FLOATS])
    narrow = [of for of in _NARROW if of.bits < dtype.bits] if arch.dequant != "none" else []
    kv_dtype = rng.choice(narrow) if narrow and rng.random() < 0.4 else None
    is_latent = rng.random() < 0.2
    heads = 1 if is_latent else rng.choice((1, 1, 2, 3))
    kv_len = rng.randint(1, rng.choice((4, 12, 24)))
    q_len = rng.choice((1, kv_len, rng.randint(1, kv_len)))
    causal = rng.random() < 0.8
    head_dim = rng.choice((1, 3, 4, 8))
    return AttentionProblem(
        rng.choice((1, 1, 2, 3)), q_len, kv_len, heads * rng.choice((1, 1, 2, 3)), heads, head_dim, dtype, kv_dtype,
        rng.choice((None, rng.randint(1, head_dim))), causal,
        rng.randint(1, kv_len) if causal and rng.random() < 0.5 else None, is_latent,
    )  # fmt: skip


def cost_of(arch: MulticoreSpec, problem: AttentionProblem, mapping: AttentionMapping) -> MulticoreCost:
    """Cost of a mapping, by the kernels."""
    out = np.zeros(1, ATTENTION_COST_DTYPE)
    (partition, tile, order, is_folded), sizes = mapping, attention_sizes(problem)
    evaluate_attention_mapping(
        attention_params(arch, problem), sizes, *partition, int(is_folded), *tile, int(order), out
    )  # fmt: skip
    return unpack_attention_cost(out[0])


def best_of(arch: MulticoreSpec, problem: AttentionProblem) -> MulticoreCost | None:
    """The best mapping's cost; None where nothing fits."""
    try:
        return unpack_attention_cost(find_best_fused_attention(arch, problem)[0])
    except InfeasibleError:
        return None


def key_of(cost: MulticoreCost) -> tuple[float, ...]:
    """Return the key that a search compares."""
    (P_U, P_Q, P_KV), tile, order, is_folded = cost.mapping
    numbers = (cost.active_cores, cost.visits, cost.sram_used_bytes, P_KV, P_U, P_Q, is_folded, order, *tile)
    return (cost.latency_us, cost.busiest_core_bytes, *numbers)


class _Case:
    """A random chip and problem, and the laws that they must keep."""

    def __init__(self, arch: MulticoreSpec, problem: AttentionProblem, rng: random.Random, report: Report) -> None:
        self.arch, self.problem, self.rng, self.report = arch, problem, rng, report
        self.mappings: list[tuple[Attention, AttentionMapping]] = list(
            itertools.islice(mappings(arch, problem), MAX_MAPPINGS + 1)
        )

    def check_search(self) -> None:
        """The answer is the least key of all legal mappings."""
        if len(self.mappings) > MAX_MAPPINGS:
            return
        law = "the search is brute force"
        self.report.checked[law] += 1
        self.report.checked["mappings of brute force"] += len(self.mappings)
        keys = [key_of(cost_of(self.arch, self.problem, mapping)) for _, mapping in self.mappings]
        found = best_of(self.arch, self.problem)
        if (None if found is None else key_of(found)) != min(keys, default=None):
            self.violates(law, f"found {found}, brute force {min(keys, default=None)}")

    def check_mapping(self) -> None:
        """A mapping costs what the oracle says, and no less than it must."""
        pairs = self.problem.batch * self.problem.num_heads * num_pairs(self.problem)
        law = "pairs are as counted one by one"
        self.report.checked[law] += 1
        if pairs != self.problem.batch * self.problem.num_heads * self.problem.num_pairs:
            self.violates(law, f"{pairs}")
        for attention, mapping in self.rng.sample(self.mappings, min(3, len(self.mappings))):
            law = "a mapping costs what the oracle says"
            self.report.checked[law] += 1
            cost = cost_of(self.arch, self.problem, mapping)
            truth = attention.evaluate(mapping.tile, mapping.loop_order)
            if odd := [name for name in _SAME if getattr(cost, name) != getattr(truth, name)]:
                self.violates(law, f"{odd} {cost}, {truth}")
            total = sum(cost.breakdown.values())
            if abs(total - cost.latency_us) > 1e-9 * cost.latency_us:
                self.violates(law, f"terms add up to {total} in {cost}")
            self.is_most("pairs are visited", pairs, cost.scores, mapping)
            if not self.arch.resident:
                self.is_most("compulsory bytes are moved", self.problem.num_bytes, cost.dram_bytes, mapping)

    def check_masks(self) -> None:
        """Check that masked attention is no slower."""
        if not self.problem.causal:
            return
        causal = dataclasses.replace(self.problem, window=None)
        full = dataclasses.replace(causal, causal=False)
        for mapping in self.draw(full):
            latencies = [cost_of(self.arch, problem, mapping).latency_us for problem in (causal, full)]
            self.is_most("causal is no slower than full", *latencies, mapping)
        best = [best_of(self.arch, problem) for problem in (causal, full)]
        if best[0] is not None and best[1] is not None:
            self.is_most("the best causal is no slower than the best full", best[0].latency_us, best[1].latency_us)
        if self.problem.window is None or self.arch.resident:
            return
        wider = dataclasses.replace(self.problem, window=self.problem.window + self.rng.randint(1, 4))
        for mapping in self.draw(wider):  # a tile that is all of its keys is all of fewer
            latencies = [cost_of(self.arch, problem, mapping).latency_us for problem in (self.problem, wider)]
            self.is_most("a wider window is no faster", *latencies, mapping)
        chip = self.arch.with_(reduction="none")
        best = [best_of(chip, problem) for problem in (self.problem, wider)]
        if best[1] is not None:
            assert best[0] is not None
            self.is_most("a wider window is no faster at best", best[0].latency_us, best[1].latency_us)

    def draw(self, problem: AttentionProblem) -> list[AttentionMapping]:
        """Up to two mappings of a problem without split keys."""
        few = itertools.islice(mappings(self.arch, problem), MAX_MAPPINGS)
        found = [mapping for _, mapping in few if mapping.partition.P_KV == 1]
        return self.rng.sample(found, min(2, len(found)))

    def check_same_work(self) -> None:
        """Sequences are as good as heads; query heads of a position are positions of full attention."""
        of = self.problem
        if not of.is_latent:
            self.is_same("sequences are heads", dataclasses.replace(
                of, batch=1, num_heads=of.batch * of.num_heads, num_kv_heads=of.batch * of.num_kv_heads
            ))  # fmt: skip
        if of.causal and of.q_len == 1 and of.window is None and of.group <= of.kv_len:
            self.is_same("heads of a position are positions", dataclasses.replace(
                of, causal=False, q_len=of.group, num_heads=of.num_kv_heads
            ))  # fmt: skip

    def is_same(self, law: str, other: AttentionProblem) -> None:
        """Check that another problem has the same answer."""
        self.report.checked[law] += 1
        found = [best_of(self.arch, problem) for problem in (self.problem, other)]
        if found[0] != found[1]:
            self.violates(law, f"{found[0]}, of {other} {found[1]}")

    def check_narrow(self) -> None:
        """A narrow cache is slower by no more than widening its keys and values takes, or room for their copies."""
        of = self.problem
        if of.kv_type is of.dtype or self.arch.dequant == "none":
            return
        wide, narrow = dataclasses.replace(of, kv_dtype=of.dtype), of
        for mapping in self.draw(narrow):
            costs = [cost_of(self.arch, problem, mapping) for problem in (wide, narrow)]
            most_us = costs[0].latency_us + self.widening_us(mapping)
            self.is_most("a narrow cache costs its widening at most", costs[1].latency_us, most_us, mapping)

    def widening_us(self, mapping: AttentionMapping) -> float:
        """Return the most that widening takes any core: of causal queries that are cut, a core that sees all keys."""
        of = self.problem
        if of.causal and mapping.partition.P_Q > 1:  # the slowest core may be another one with a narrow cache
            # the two parts of a folded core may fill a tile more than one part that is as long
            more = mapping.partition.P_Q * mapping.tile.tile_q if mapping.is_folded else 0
            of = dataclasses.replace(of, causal=False, window=None, q_len=of.q_len + more)
            mapping = mapping._replace(is_folded=False)
        wide, narrow = (dataclasses.replace(of, kv_dtype=dtype) for dtype in (of.dtype, of.kv_dtype))
        costs = [cost_of(self.arch, problem, mapping).breakdown["vector_us"] for problem in (wide, narrow)]
        return costs[1] - costs[0]

    def check_more_hardware(self) -> None:
        """Check that more of every resource is no slower."""
        arch, before = self.arch, best_of(self.arch, self.problem)
        if before is None:
            return
        factor = self.rng.choice((1.0625, 1.5, 2.0, 8.0))
        assert arch.vector_ops_per_cycle is not None
        rates = {dtype: rate * factor for dtype, rate in arch.cube_steps_per_cycle.items()}
        changes: dict[str, dict[str, Any]] = {
            "DRAM bandwidth": {"dram_gb_per_s": arch.dram_gb_per_s * factor},
            "vector unit": {"vector_ops_per_cycle": arch.vector_ops_per_cycle * factor},
            "clock": {"frequency_ghz": arch.frequency_ghz * factor},
            "steps a cycle": {"cube_steps_per_cycle": rates},
            "overlap": {"overlap_frac": min(1.0, arch.overlap_frac * factor)},
        }
        if not arch.resident:  # what no longer fits comes from DRAM, which may be the faster way
            changes["SRAM"] = {"sram_bytes": arch.sram_bytes + self.rng.randint(1, 1 << self.rng.randint(1, 16))}
        if arch.noc_gb_per_s is not None:
            changes["network bandwidth"] = {"noc_gb_per_s": arch.noc_gb_per_s * factor}
        if arch.dram_sharing == "fair" and arch.shared_bytes is None and not arch.resident:
            changes["cores"] = {"num_cores": arch.num_cores + self.rng.randint(1, 4)}
        if arch.shared_bytes is not None:
            changes["shared memory"] = {"shared_bytes": arch.shared_bytes + self.rng.randint(1, 4096)}
        for name, change in changes.items():
            after = best_of(arch.with_(**change), self.problem)
            if after is None:
                self.violates(f"more is no slower: {name}", f"nothing fits with {change}")
            else:
                self.is_most(f"more is no slower: {name}", after.latency_us, before.latency_us, change)

    def is_most(self, law: str, low: float, high: float, *context: object) -> None:
        """Check that `low` is at most `high`, but for rounding."""
        self.report.checked[law] += 1
        if low > high * (1 + ROUNDING):
            self.violates(law, f"{low} > {high} {context}")

    def violates(self, law: str, text: str) -> None:
        """Note what was found."""
        spec = self.arch.model_dump(mode="json", exclude_defaults=True)
        self.report.violations.append(f"{law}: {text}; {self.problem!r} on {spec}")
