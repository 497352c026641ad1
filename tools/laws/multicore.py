"""Laws of the multi-core model and its search, on random chips and problems.

The search is compared with brute force over every partition, legal tile and loop order; the cost of a mapping with the
plain-Python oracle; and costs and answers with what physics says of them (MODEL.md, "Latency of a core").
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval import GEMMEvaluator, GemmProblem, InfeasibleError, MulticoreSpec
from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile, enumerate_partitions
from gemm_eval.models.multicore import cost_of_mapping
from gemm_eval.models.multicore.cost_kernels import COST_DTYPE, block_of
from gemm_eval.models.multicore.model import MulticoreCost, group_sizes, pack_params, params_in_room, unpack_cost
from gemm_eval.models.multicore.pipeline_kernels import ceil_div, reload_factors
from gemm_eval.search.multicore import find_best
from tests.oracle import naive
from tools.laws.multicore_draws import draw_chip, draw_mapping, draw_problem, legal_sizes
from tools.laws.report import Report

ROUNDING = 1e-12
MAX_MAPPINGS = 20_000
"""Larger spaces are left out: brute force takes some microseconds a mapping."""
_FEW = 25
_ORACLE = "a mapping costs what the oracle says"
_KEY = (
    *("latency_us", "busiest_core_bytes", "active_cores", "visits", "sram_used_bytes", "P_K", "P_G", "P_M", "P_N"),
    *("loop_order", "tile_m", "tile_n", "tile_k"),
)
"""Fields that are compared, in this order; MODEL.md, "Choice"."""


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random problems."""
    rng, report = random.Random(seed), Report()
    for _ in range(count):
        arch = draw_chip(rng)
        case = Case(arch, draw_problem(rng, arch), rng, report)
        case.check_search()
        case.check_few()
        case.check_top()
        case.check_mapping()
        case.check_more_hardware()
    return report


def _key(record: np.void) -> tuple[float, ...]:
    return tuple(record[name].item() for name in _KEY)


PLAIN = {
    "shared_bytes": None, "shared_gb_per_s": None, "dram_write_gb_per_s": None, "feed_bytes_per_cycle": None,
    "resident": (),
}  # fmt: skip
"""Fields that overlap timing alone knows, without values."""


class Case:
    """A random chip and problem, and the laws that they must keep."""

    def __init__(self, arch: MulticoreSpec, problem: GemmProblem, rng: random.Random, report: Report) -> None:
        self.arch, self.problem, self.rng, self.report = arch, problem, rng, report
        self.params = params_in_room(pack_params(arch, problem.types), problem)
        self.latency_us: dict[MulticoreMapping, float] = {}
        """of every legal mapping, idle cores or not, where brute force goes through them"""

    # --- the search --------------------------------------------------------------------------------------------------

    def check_search(self) -> None:
        """The answer is the least key of all legal mappings."""
        allow_idle_cores = self.rng.random() < 0.5
        mappings = list(itertools.islice(self._mappings(allow_idle_cores), MAX_MAPPINGS + 1))
        if len(mappings) > MAX_MAPPINGS:
            return
        found = self.best(self.arch, allow_idle_cores=allow_idle_cores)
        law = "the search is brute force"
        self.report.checked[law] += 1
        self.report.checked["mappings of brute force"] += len(mappings)
        out = np.zeros(1, COST_DTYPE)
        keys = []
        for mapping in mappings:
            self.evaluate_into(self.params, mapping, out)
            keys.append(_key(out[0]))
        if allow_idle_cores:
            self.latency_us = {mapping: key[0] for mapping, key in zip(mappings, keys, strict=True)}
        if not keys or found is None:
            if keys or found is not None:
                self.violates(law, f"found {found}, of {len(keys)} mappings")
            return
        key, mapping = min(zip(keys, mappings, strict=True))
        if self.arch.timing == "overlap":
            is_same = found.mapping == mapping and found.latency_us == key[0]
        else:  # a sum of visits, whose last bits depend on the mapping
            is_same = abs(found.latency_us - key[0]) <= ROUNDING * key[0]
        if not is_same:
            self.violates(law, f"found {found.latency_us} {found.mapping}, brute force {key[0]} {mapping}")

    def check_few(self) -> None:
        """The best few are the best mappings of the best groups; without overlap every mapping is a group."""
        best: dict[tuple[Any, ...], float] = {}
        for mapping, latency_us in self.latency_us.items():
            if group := self._group(mapping):
                best[group] = min(best.get(group, np.inf), latency_us)
        if not best:
            return
        law = "the best few are those of brute force"
        self.report.checked[law] += 1
        found = find_best(self.arch, self.problem, self.params, _FEW, allow_idle_cores=True)["latency_us"]
        if found.tolist() != sorted(best.values())[:_FEW]:
            self.violates(law, f"{found.tolist()}, brute force {sorted(best.values())[:_FEW]}")

    def _group(self, mapping: MulticoreMapping) -> tuple[Any, ...]:
        """Return what mappings share of which only the best is listed; () where cores get nothing."""
        block = block_of(self.params[0], *self.problem.sizes, *mapping.partition)
        cut = (block.E_G, block.E_M, block.E_N, block.E_K)
        if cut != tuple(mapping.partition) or self.arch.timing == "pipeline":
            return mapping if cut == tuple(mapping.partition) else ()
        sizes = zip((block.m, block.n, block.k), mapping.tile, strict=True)
        trips = [ceil_div(size, tile) for size, tile in sizes]
        moved = [reload_factors(int(order), *trips) for order in LoopOrder]
        return cut, *trips[:2], moved.index(moved[mapping.loop_order])

    def check_top(self) -> None:
        """The best few are distinct, sorted, legal, cost what a replay says, and begin with the best fewer."""
        law = "the best few are sorted, distinct, legal, and the same however many are asked for"
        self.report.checked[law] += 1
        few = self.rng.randint(1, 4)
        try:
            counts = (few, 2 * few + 3)
            records = [find_best(self.arch, self.problem, self.params, k, allow_idle_cores=True) for k in counts]
        except InfeasibleError:
            return
        fewer, more = ([_key(record) for record in found] for found in records)
        if fewer != more[:few]:
            self.violates(law, f"of {few} {fewer}, of more {more}")
        by_time = more if self.arch.timing == "overlap" else [key[:1] for key in more]
        if len(set(more)) < len(more) or by_time != sorted(by_time):
            self.violates(law, f"{more}")
        for key, record in zip(more, records[1], strict=True):
            mapping = unpack_cost(record).mapping
            out = np.zeros(1, COST_DTYPE)
            self.evaluate_into(self.params, mapping, out)
            if not naive.is_legal(self.arch, self.problem, mapping) or _key(out[0]) != key:
                self.violates(law, f"{key}, {_key(out[0])} {mapping}")

    def _mappings(self, allow_idle_cores: bool) -> Iterator[MulticoreMapping]:
        arch, problem, record = self.arch, self.problem, self.params[0]
        for row in enumerate_partitions(arch.num_cores, allow_idle_cores=allow_idle_cores).tolist():
            block = block_of(record, *problem.sizes, *row)
            if block.E_K > 1 and arch.reduction == "none":
                continue
            units = ((block.m, arch.cube_m), (block.n, arch.cube_n), (block.k, int(record["unit_k"])))
            for sizes in itertools.product(*(legal_sizes(size, unit) for size, unit in units)):
                tile = Tile(*map(int, sizes))
                if naive.sram_used_bytes(arch, problem, tile) <= int(record["sram_usable_bytes"]):
                    for order in LoopOrder:
                        yield MulticoreMapping(Partition(*row), tile, order)

    def best(self, arch: MulticoreSpec, *, allow_idle_cores: bool = True) -> MulticoreCost | None:
        try:
            params = params_in_room(pack_params(arch, self.problem.types), self.problem)
            return unpack_cost(find_best(arch, self.problem, params, allow_idle_cores=allow_idle_cores)[0])
        except InfeasibleError:
            return None

    def evaluate_into(self, params: npt.NDArray[np.void], mapping: MulticoreMapping, out: Any) -> None:
        out[:] = cost_of_mapping(params, self.problem, mapping)

    # --- one mapping -------------------------------------------------------------------------------------------------

    def check_mapping(self) -> None:
        """Laws that hold at any mapping, whether it fits in SRAM or not."""
        mapping = draw_mapping(self.rng, self.arch, self.problem, self.params)
        self._check_oracle(mapping)
        two = self.cost(mapping, input_buffers=2, output_buffers=2)
        cost = self.cost(mapping)
        for name, main_us in (
            ("computation", cost.compute_us),
            ("DMA", cost.dma_us * (1 - ROUNDING) - self._byte_us()),
        ):
            self.is_most(f"no faster than {name} alone", main_us, cost.main_us, mapping)
        self.check_buffers(mapping)
        one = self.cost(mapping, timing="overlap", input_buffers=1, output_buffers=1)
        if self.arch.feed_bytes_per_cycle is None:  # which works beside the matrix unit, whatever the buffers
            self.is_most("one buffer of each overlaps nothing", one.compute_us + one.dma_us, one.main_us, mapping)
            if two.visits == 1 and self.arch.timing == "overlap":
                self.is_most("one visit overlaps nothing", two.compute_us + two.dma_us, two.main_us, mapping)
        self._check_pipeline(mapping)
        self.check_traffic(mapping, cost)
        self.check_orders(mapping)

    def check_buffers(self, mapping: MulticoreMapping) -> None:
        """Check that two buffers of each operand are no slower than one."""
        for timing, inputs in (("overlap", 1), ("overlap", 2), ("pipeline", 2)):
            plain = PLAIN if timing == "pipeline" else {}
            more = self.cost(mapping, timing=timing, input_buffers=2, output_buffers=2, **plain)
            fewer = self.cost(mapping, timing=timing, input_buffers=inputs, output_buffers=1, **plain)
            self.is_most(f"two buffers are no slower than one ({timing})", more.main_us, fewer.main_us, mapping)

    def check_truth(self, mapping: MulticoreMapping, truth: Any, *more_names: str) -> None:
        """Check the cost of a mapping against the oracle's: counts and `more_names` equal, sums but for rounding."""
        self.report.checked[_ORACLE] += 1
        cost = self.cost(mapping)
        names = (
            "dram_bytes", "visits", "active_cores", "sram_used_bytes", "busiest_core_bytes", "a_bytes", "b_bytes",
            "c_store_bytes", "c_spill_bytes", "c_refill_bytes", "reduction_bytes", *more_names,
        )  # fmt: skip
        if odd := [name for name in names if getattr(cost, name) != getattr(truth, name)]:
            self.violates(_ORACLE, f"{odd} {cost}, {truth} {mapping}")
        assert cost.energy_pj is not None
        assert truth.energy_pj is not None
        exact = 0.0 if self.arch.timing == "overlap" else ROUNDING
        for name, ours, theirs, tolerance in (
            ("latency_us", cost.latency_us, truth.latency_us, exact),
            ("energy_pj", cost.energy_pj, truth.energy_pj, ROUNDING),
        ):
            if abs(ours - theirs) > tolerance * theirs:
                self.violates(_ORACLE, f"{name} {ours}, {theirs} {mapping}")

    def _check_oracle(self, mapping: MulticoreMapping) -> None:
        truth = naive.evaluate_mapping(self.arch, self.problem, mapping)
        self.check_truth(mapping, truth, "compute_us", "dma_us", "dram_us")
        result = GEMMEvaluator(self.arch.with_(sram_bytes=1 << 24), disk_cache=False).evaluate_mapping(
            self.problem, mapping
        )  # fmt: skip
        terms, bound = naive.breakdown_of(self.arch.with_(sram_bytes=1 << 24), self.problem, mapping)
        tolerance = 1e-9 * max(map(abs, terms.values()))
        odd = [name for name, us in terms.items() if not abs(result.breakdown[name] - us) <= tolerance]
        if odd or result.bound != bound:
            self.violates(_ORACLE, f"{odd} {result.breakdown} {terms} {result.bound} {bound} {mapping}")

    def _check_pipeline(self, mapping: MulticoreMapping) -> None:
        """Perfect overlap is below the pipeline, which is below no overlap."""
        for buffers in (1, 2):
            kept = {"input_buffers": 2, "output_buffers": buffers, **PLAIN}
            pipeline = self.cost(mapping, timing="pipeline", **kept)
            best = self.cost(mapping, timing="overlap", overlap_frac=1.0, **kept)
            block = block_of(self.params[0], *self.problem.sizes, *mapping.partition)
            sizes = zip((block.m, block.n, block.k), mapping.tile, strict=True)
            if all(size % tile == 0 for size, tile in sizes):
                least_us = best.main_us * (1 - ROUNDING) - 4 * self._byte_us()
                self.is_most("perfect overlap is no slower than the pipeline", least_us, pipeline.main_us, mapping)
            if self.arch.noc_gb_per_s is None and not (self.arch.vector_is_concurrent and best.vector_us > 0.0):
                serial_us = best.compute_us + best.dma_us
                self.is_most("no overlap is no faster than the pipeline", pipeline.main_us, serial_us, mapping)

    def check_traffic(self, mapping: MulticoreMapping, cost: MulticoreCost) -> None:
        problem = self.problem
        assert problem.weight_dtype is not None
        assert problem.output_dtype is not None
        for name, moved, elements, dtype in (
            ("A", cost.a_bytes, problem.rows * problem.K, problem.input_dtype),
            ("B", cost.b_bytes, int(group_sizes(problem).counts.sum()) * problem.K * problem.N, problem.weight_dtype),
            ("C", cost.c_store_bytes + cost.reduction_bytes, problem.rows * problem.N, problem.output_dtype),
        ):
            if not self.params[f"{name.lower()}_is_resident"][0]:
                self.is_most(f"all of {name} is moved", elements * dtype.half_bits / 16, moved, mapping)
        assert cost.energy_pj is not None
        assert self.arch.dram_pj_per_byte is not None
        least_pj = problem.macs * self.arch.mac_pj[problem.input_dtype] + cost.dram_bytes * self.arch.dram_pj_per_byte
        least_pj += self.arch.static_w * 1e6 * cost.latency_us
        self.is_most("energy is at least that of MACs, DRAM and leakage", least_pj, cost.energy_pj, mapping)

    def check_orders(self, mapping: MulticoreMapping) -> None:
        """Check that the loop order that loads more and moves more of C takes no less time and energy."""
        if self.problem.is_weight_quantized and self.arch.dequant == "vector":
            return  # loading more of B then is more to compute, too
        if self.arch.resident or self.arch.shared_bytes is not None:
            return  # what passes DRAM is not all that is loaded
        costs = [self.cost(mapping._replace(loop_order=order), timing="overlap") for order in LoopOrder]
        for less, more in itertools.permutations(costs, 2):
            if (
                less.a_bytes <= more.a_bytes
                and less.b_bytes + less.scale_bytes <= more.b_bytes + more.scale_bytes
                and less.c_spill_bytes <= more.c_spill_bytes
            ):
                self.is_most("more traffic is no faster", less.latency_us, more.latency_us, mapping)
                assert less.energy_pj is not None
                assert more.energy_pj is not None
                self.is_most("more traffic takes no less energy", less.energy_pj, more.energy_pj, mapping)

    def cost(self, mapping: MulticoreMapping, **changes: Any) -> MulticoreCost:
        params = self.params
        if changes:
            params = params_in_room(pack_params(self.arch.with_(**changes), self.problem.types), self.problem)
        out = np.zeros(1, COST_DTYPE)
        self.evaluate_into(params, mapping, out)
        return unpack_cost(out[0])

    def _byte_us(self) -> float:
        """Time of the bytes by which sums of a pipeline, which rounds none, may be below sums that are rounded up."""
        record = self.params[0]
        share = min(record["dram_bytes_per_us"] / record["num_cores"], record["dram_core_limit_bytes_per_us"])
        return float(4 / share + 4 / record["noc_bytes_per_us"])

    # --- more hardware -----------------------------------------------------------------------------------------------

    def check_more_hardware(self) -> None:
        """Check that more of every resource is no slower."""
        arch, rng = self.arch, self.rng
        before = self.best(arch)
        if before is None:
            return
        factor = rng.choice((1.0625, 1.5, 2.0, 8.0))
        changes: dict[str, dict[str, Any]] = {
            "DRAM bandwidth": {"dram_gb_per_s": arch.dram_gb_per_s * factor},
            "load clock": {
                "load_clock_frac": {dtype: min(1.0, of * factor) for dtype, of in arch.load_clock_frac.items()}
            },
            "loads of weights": {"weight_load_cycles": arch.weight_load_cycles / factor},
            "waking": {"sync_us": arch.sync_us / factor},
            "starts of tasks": {"task_us": arch.task_us / factor},
            "queue": {"launch_floor_us": arch.launch_floor_us / factor},
            "clock": {"frequency_ghz": arch.frequency_ghz * factor},
            "steps a cycle": {
                "cube_steps_per_cycle": {dtype: rate * factor for dtype, rate in arch.cube_steps_per_cycle.items()}
            },
            "overlap": {"overlap_frac": min(1.0, arch.overlap_frac * factor)},
        }
        if arch.noc_gb_per_s is not None:
            changes["network bandwidth"] = {"noc_gb_per_s": arch.noc_gb_per_s * factor}
        if arch.dram_write_gb_per_s is not None:
            changes["write bandwidth"] = {"dram_write_gb_per_s": arch.dram_write_gb_per_s * factor}
        if arch.pack_gb_per_s is not None:
            changes["packing"] = {"pack_gb_per_s": arch.pack_gb_per_s * factor}
        if arch.feed_bytes_per_cycle is not None:
            changes["feed"] = {"feed_bytes_per_cycle": arch.feed_bytes_per_cycle * factor}
        if arch.shared_bytes is not None:
            assert arch.shared_gb_per_s is not None
            changes["shared memory"] = {"shared_bytes": arch.shared_bytes + rng.randint(1, 1 << rng.randint(1, 16))}
            changes["bandwidth of shared memory"] = {"shared_gb_per_s": arch.shared_gb_per_s * factor}
        if not arch.resident:  # with more room operands may come to lie in SRAM, where they take room from tiles
            changes["SRAM"] = {"sram_bytes": arch.sram_bytes + rng.randint(1, 1 << rng.randint(1, 16))}
        if arch.dram_sharing == "fair" and not arch.resident:
            changes["cores"] = {"num_cores": arch.num_cores + rng.randint(1, 4)}
        if arch.vector_ops_per_cycle is not None:
            changes["vector operations"] = {"vector_ops_per_cycle": arch.vector_ops_per_cycle * factor}
        for name, change in changes.items():
            self._is_no_slower(f"more {name} is no slower", arch.with_(**change), before)
        roomy = arch.with_(sram_bytes=1 << 24, input_buffers=2, output_buffers=1)
        single = self.best(roomy)
        assert single is not None
        self._is_no_slower("two C buffers are no slower where there is room", roomy.with_(output_buffers=2), single)
        if arch.timing == "overlap":
            single = self.best(roomy.with_(input_buffers=1))
            assert single is not None
            self._is_no_slower("two input buffers are no slower where there is room", roomy, single)

    def _is_no_slower(self, law: str, arch: MulticoreSpec, before: MulticoreCost) -> None:
        after = self.best(arch)
        after_us = float("inf") if after is None else after.latency_us
        self.is_most(law, after_us, before.latency_us, before.mapping)

    def is_most(self, law: str, small: float, large: float, mapping: MulticoreMapping) -> None:
        self.report.checked[law] += 1
        if small > large * (1 + ROUNDING):
            self.violates(law, f"{small!r} > {large!r} at {mapping}")

    def violates(self, law: str, what: str) -> None:
        spec = self.arch.model_dump(mode="json", exclude_defaults=True)
        self.report.violations.append(f"{law}: {what}; {self.problem!r} on {spec}")
