"""Slow truth of fused attention on multi-core chips: its formulas as MODEL.md writes them, by walking every visit.

Standard library only, and nothing of gemm_eval/models or gemm_eval/search. Whether a tile is visited is asked of every
pair; what stays in SRAM is seen from one visit to the next. Float operations are done in the order of the kernels, so
that they may be compared exactly.
"""

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.mapping import AttentionMapping, AttentionOrder, AttentionPartition, AttentionTile
from gemm_eval.workload import AttentionProblem, GemmProblem
from tests.oracle.simulators import bits_of, bytes_of, ceil_div, partial_bits

_OTHER_OPS = 5  # of a score, besides its exponential
_STATS = 2


class Moved(NamedTuple):
    """Bytes of a core as DRAM, the memory between DRAM and SRAM, and the core's port count them."""

    dram: float
    shared: float
    port: float


def write_share(arch: MulticoreSpec, divisor: int) -> float:
    """Bandwidth of a core that writes, in bytes per us."""
    gb_per_s = arch.dram_gb_per_s if arch.dram_write_gb_per_s is None else arch.dram_write_gb_per_s
    share = gb_per_s * 1e3 * arch.dram_efficiency_frac / divisor
    return share if arch.dram_core_limit_gb_per_s is None else min(share, arch.dram_core_limit_gb_per_s * 1e3)


class AttentionTruth(NamedTuple):
    """Cost of one mapping, as `MulticoreCost` has it."""

    latency_us: float
    busiest_core_bytes: float
    active_cores: int
    visits: int
    sram_used_bytes: int
    q_bytes: int
    kv_bytes: int
    o_store_bytes: int
    o_spill_bytes: int
    reduction_bytes: int
    scores: int
    bound_terms: tuple[float, ...]
    """of the slowest core: main loop, compute, DRAM, reduction"""

    @property
    def dram_bytes(self) -> int:
        return self.q_bytes + self.kv_bytes + self.o_store_bytes + 2 * self.o_spill_bytes + self.reduction_bytes


class Visit(NamedTuple):
    """A tile of rows (strip half, number, rows) times a tile of keys (number, keys)."""

    half: int
    row_tile: int
    rows: int
    key_tile: int
    keys: int


class Walk(NamedTuple):
    """What a core loads, spills and computes for one unit."""

    visits: list[Visit]
    q_rows: int
    kv_keys: int
    spill_rows: int


def sees(problem: AttentionProblem, position: int, key: int) -> bool:
    """Whether the query at a position attends to a key, both counted from the first of the keys that any attends to."""
    if not problem.causal:
        return True
    ahead = problem.num_keys - problem.q_len
    window = problem.num_keys if problem.window is None else problem.window
    return position + ahead - window < key <= position + ahead


def num_pairs(problem: AttentionProblem) -> int:
    """Pairs of a query and a key of one head, one by one."""
    return sum(sees(problem, p, j) for p in range(problem.q_len) for j in range(problem.num_keys))


class Attention:
    """A problem on a chip, under one partition."""

    def __init__(
        self, arch: MulticoreSpec, problem: AttentionProblem, partition: AttentionPartition, is_folded: bool
    ) -> None:
        self.arch, self.problem, self.is_folded = arch, problem, is_folded
        gemm = GemmProblem(
            1, 1, problem.head_dim, problem.num_keys, problem.dtype, problem.kv_type, problem.output_dtype
        )  # fmt: skip
        self.bits, self.partial = bits_of(gemm), partial_bits(arch, gemm)
        self.is_dequantized = gemm.is_weight_quantized and arch.dequant == "vector"
        self.D, self.V = problem.head_dim, problem.value_dim
        self.W = self.D if problem.is_latent else self.D + self.V
        self.U, self.R, self.L = (
            problem.batch * problem.num_kv_heads, problem.q_len * problem.group, problem.num_keys,
        )  # fmt: skip
        self.u, self.l = ceil_div(self.U, partition.P_U), ceil_div(self.L, partition.P_KV)
        self.strip = ceil_div(self.R, partition.P_Q * (2 if is_folded else 1))
        self.n = ceil_div(self.R, self.strip)
        self.E_U, self.E_KV = ceil_div(self.U, self.u), ceil_div(self.L, self.l)
        self.E_Q = ceil_div(self.n, 2) if is_folded else self.n
        self.active_cores = self.E_U * self.E_Q * self.E_KV
        divisor = arch.num_cores if arch.dram_sharing == "static" else self.active_cores
        self.share = arch.dram_gb_per_s * 1e3 * arch.dram_efficiency_frac / divisor
        if arch.dram_core_limit_gb_per_s is not None:
            self.share = min(self.share, arch.dram_core_limit_gb_per_s * 1e3)
        self.write_cost = self.share / write_share(arch, divisor)
        self.shared_share = math.inf if arch.shared_gb_per_s is None else arch.shared_gb_per_s * 1e3 / divisor
        self.port = math.inf if arch.noc_gb_per_s is None else arch.noc_gb_per_s * 1e3
        self.cube_k = arch.cube_k_of(problem.dtype)
        self.cycles_per_us = arch.frequency_ghz * arch.load_clock_frac.get(problem.dtype, 1.0) * 1e3
        self.is_multicast = arch.load_sharing == "multicast"

    # --- room --------------------------------------------------------------------------------------------------------

    @cached_property
    def _resident_bytes(self) -> int:
        sizes = {
            "A": self.U * self.R * self.D * self.bits.a,
            "B": self.U * self.problem.kv_len * self.W * self.bits.b,
            "C": self.U * self.R * self.V * self.bits.output,
        }
        return ceil_div(sum(sizes[name] for name in self.arch.resident), 16 * self.arch.num_cores)

    @cached_property
    def residents(self) -> set[str]:
        usable = math.floor(self.arch.sram_bytes * self.arch.sram_usable_frac)
        fits = self._resident_bytes <= math.floor(usable * self.arch.resident_max_frac)
        return set(self.arch.resident) if fits else set()

    def sram_used(self, tile: AttentionTile) -> int:
        """SRAM of the tiles of a core."""
        bits, (tile_q, tile_kv) = self.bits, tile

        def padded(rows: int, elems: int, half_bits: int) -> int:
            row_bytes = ceil_div(ceil_div(elems * half_bits, 16), self.arch.align_bytes) * self.arch.align_bytes
            return ceil_div(rows, self.arch.lane_num) * self.arch.lane_num * row_bytes

        stored = [self.D] if self.problem.is_latent else [self.D, self.V]
        total = self.arch.input_buffers * padded(tile_q, self.D, bits.a)
        for width in stored:
            total += self.arch.input_buffers * padded(tile_kv, width, bits.b)
            total += padded(tile_kv, width, bits.a) if self.is_dequantized else 0
        total += padded(tile_q, tile_kv, bits.accumulator) + padded(tile_q, tile_kv, bits.a)
        return (
            total
            + self.arch.output_buffers * padded(tile_q, self.V, bits.accumulator)
            + padded(tile_q, _STATS, bits.accumulator)
        )

    def fits(self, tile: AttentionTile) -> bool:
        """Whether tiles fit beside resident operands."""
        usable = math.floor(self.arch.sram_bytes * self.arch.sram_usable_frac)
        return self.sram_used(tile) <= usable - (self._resident_bytes if self.residents else 0)

    def tiles(self) -> Iterator[AttentionTile]:
        """Every tile: multiples of the units below strip and span, and these themselves."""
        unit_kv = math.lcm(self.arch.cube_n, self.cube_k)
        for tile in itertools.product(_sizes(self.strip, self.arch.cube_m), _sizes(self.l, unit_kv)):
            yield AttentionTile(*tile)

    # --- what a core does --------------------------------------------------------------------------------------------

    def strips(self, core: int) -> list[range]:
        """Rows of a core, strip by strip."""
        places = [core]
        if self.is_folded and self.n - 1 - core != core:
            places.append(self.n - 1 - core)
        return [range(i * self.strip, min((i + 1) * self.strip, self.R)) for i in places]

    def span(self, place: int) -> range:
        """Keys of a core."""
        return range(place * self.l, min((place + 1) * self.l, self.L))

    def walk(self, core: int, place: int, tile: AttentionTile, order: AttentionOrder) -> Walk:
        """Walk the visits of one unit, seeing which tiles change."""
        rows = [
            (half, i, strip[i * tile.tile_q : (i + 1) * tile.tile_q])
            for half, strip in enumerate(self.strips(core))
            for i in range(ceil_div(len(strip), tile.tile_q))
        ]
        span = self.span(place)
        keys = [(j, span[j * tile.tile_kv : (j + 1) * tile.tile_kv]) for j in range(ceil_div(len(span), tile.tile_kv))]
        if order is AttentionOrder.QK:
            pairs = [(row, key) for row in rows for key in keys]
        else:
            pairs = [(row, key) for key in keys for row in rows]
        visits = [
            Visit(half, i, len(row), j, len(key))
            for (half, i, row), (j, key) in pairs
            if any(sees(self.problem, r // self.problem.group, k) for r in row for k in key)
        ]
        q_rows = kv_keys = spill_rows = 0
        seen: set[tuple[int, int]] = set()
        before: Visit | None = None
        for visit in visits:
            row_tile = (visit.half, visit.row_tile)
            if before is None or row_tile != (before.half, before.row_tile):
                q_rows += visit.rows
                spill_rows += visit.rows if row_tile in seen else 0
                seen.add(row_tile)
            if before is None or visit.key_tile != before.key_tile:
                kv_keys += visit.keys
            before = visit
        return Walk(visits, q_rows, kv_keys, spill_rows)

    def stream_keys(self, place: int, tile: AttentionTile, order: AttentionOrder) -> int:
        """Keys that the cores of a unit and span load together."""
        if order is AttentionOrder.KQ:
            return len(self.span(place))
        passes: dict[tuple[int, int], dict[int, int]] = {}
        for core in range(self.E_Q):
            for visit in self.walk(core, place, tile, order).visits:
                passes.setdefault((visit.half, visit.row_tile), {})[visit.key_tile] = visit.keys
        total, last = 0, -1
        for _, loaded in sorted(passes.items()):
            for key_tile, keys in sorted(loaded.items()):
                total += keys if key_tile != last else 0
                last = key_tile
        return total

    # --- how long it takes -------------------------------------------------------------------------------------------

    def blocks(self, keys: int) -> int:
        """Blocks of K and of V that the matrix unit takes of a tile of keys."""
        of_scores = ceil_div(keys, self.arch.cube_n) * ceil_div(self.D, self.cube_k)
        return of_scores + ceil_div(self.V, self.arch.cube_n) * ceil_div(keys, self.cube_k)

    def o_of(self, stored: float, spilled: float) -> Moved:
        """What bytes of O pass that leave a core for good, and others that come back."""
        if "C" in self.residents:
            spilled = 0.0
            stored = stored if self.E_KV > 1 else 0.0
        written = spilled + stored
        return Moved(written * self.write_cost + spilled, written + spilled, written + spilled)

    def moved_us(self, *parts: Moved) -> float:
        """Time to move these bytes."""
        dram, shared, port = (sum(of) for of in zip(*parts, strict=True))
        return max(dram / self.share, shared / self.shared_share, port / self.port)

    def store_bits(self) -> int:
        """Half bits of an element of O as the main loop stores it."""
        if self.E_KV == 1:
            return self.bits.output
        return self.partial if self.arch.reduction == "dram" else 0

    def core_cost(
        self, u: int, core: int, place: int, tile: AttentionTile, order: AttentionOrder, walk: Walk, stream: int
    ) -> dict[str, float]:
        """Times and bytes of a core with u units."""
        arch, bits, V = self.arch, self.bits, self.V
        assert arch.vector_ops_per_cycle is not None
        rows, span = sum(map(len, self.strips(core))), len(self.span(place))
        q_bytes, kv_bytes = bytes_of(u * walk.q_rows * self.D, bits.a), bytes_of(u * walk.kv_keys * self.W, bits.b)
        q_once = bytes_of(u * rows * self.D, bits.a) / self.E_KV
        kv_once = bytes_of(u * span * self.W, bits.b) / self.E_Q
        width = V if self.E_KV == 1 else V + _STATS
        store, spill = (
            bytes_of(u * rows * width, self.store_bits()), bytes_of(u * walk.spill_rows * (V + _STATS), self.partial),
        )  # fmt: skip
        q, kv = float(q_bytes), float(kv_bytes)
        if self.is_multicast:
            kv = bytes_of(u * stream * self.W, bits.b) / self.E_Q
            q = q_once if order is AttentionOrder.QK else q
        q, q_once = (0.0, 0.0) if "A" in self.residents else (q, q_once)
        kv, kv_once = (0.0, 0.0) if "B" in self.residents else (kv, kv_once)
        partial = bytes_of(u * rows * (V + _STATS), self.partial) if spill and "C" not in self.residents else 0
        rest = 1.0
        if arch.shared_bytes is not None:
            wanted = (q_once if q > q_once else 0.0) + (kv_once if kv > kv_once else 0.0) + partial
            room = arch.shared_bytes / self.active_cores
            rest = 0.0 if wanted <= room else 1.0 - room / wanted
        q_dram, kv_dram = (once + rest * max(0.0, moved - once) for moved, once in ((q, q_once), (kv, kv_once)))
        if arch.shared_bytes is None:
            q_dram, kv_dram = q, kv
        loads = Moved(q_dram + kv_dram, q + kv, q_bytes + kv_bytes)
        o = self.o_of(store, spill)._replace(dram=self.o_of(store, spill * rest).dram)
        steps = sum(ceil_div(v.rows, arch.cube_m) * self.blocks(v.keys) for v in walk.visits)
        fills = sum(self.blocks(v.keys) for v in walk.visits)
        scores = sum(v.rows * v.keys for v in walk.visits)
        feed_us = 0.0
        if arch.feed_bytes_per_cycle is not None:
            b_bits = bits.b if arch.dequant == "inline" else bits.a
            step_bytes = (arch.cube_m * self.cube_k * bits.a + self.cube_k * arch.cube_n * b_bits) / 16
            feed_us = u * steps * (step_bytes / arch.feed_bytes_per_cycle / self.cycles_per_us)
        dma_us = max(self.moved_us(loads, o), feed_us)
        ops = u * ((arch.exp_ops_per_elem + _OTHER_OPS) * scores + V * (sum(v.rows for v in walk.visits) + rows))
        vector = ops / arch.vector_ops_per_cycle
        if self.is_dequantized:
            assert arch.dequant_ops_per_elem is not None
            vector += u * walk.kv_keys * self.W * arch.dequant_ops_per_elem / arch.vector_ops_per_cycle
        cube = u * steps / arch.cube_steps_per_cycle[self.problem.dtype]
        cube += 2 * u * len(walk.visits) * arch.fill_drain_cycles + u * fills * arch.weight_load_cycles
        compute_us = (max(cube, vector) if arch.vector_is_concurrent else cube + vector) / self.cycles_per_us
        main_us = self._main_us(core, span, tile, order, loads, o, compute_us, dma_us)
        reduction_us, reduction_dram = self._reduction(u, rows)
        row_tiles = sum(ceil_div(len(strip), tile.tile_q) for strip in self.strips(core))
        busy_us = arch.launch_us + main_us + reduction_us + (arch.sync_us if self.active_cores > 1 else 0.0)
        busy_us += (u * row_tiles - 1) * arch.task_us
        return {
            "latency_us": max(busy_us, arch.launch_floor_us), "charged": (loads.dram + o.dram) + reduction_dram,
            "q": q_dram, "kv": kv_dram, "store": store, "spill": spill * rest, "scores": u * scores,
            "main_us": main_us, "compute_us": compute_us, "dram_us": (loads.dram + o.dram) / self.share,
            "reduction_us": reduction_us,
        }  # fmt: skip

    def _reduction(self, u: int, rows: int) -> tuple[float, float]:
        """Time, and DRAM bytes with what a written one costs."""
        if self.E_KV == 1:
            return 0.0, 0.0
        arch = self.arch
        assert arch.vector_ops_per_cycle is not None
        share = ceil_div(u * rows * (self.V + _STATS), self.E_KV)
        written = bytes_of(ceil_div(u * rows * self.V, self.E_KV), self.bits.output) * self.write_cost
        dram, noc_us = 0.0 if "C" in self.residents else written, 0.0
        if arch.reduction == "dram":
            dram += bytes_of(self.E_KV * share, self.partial)
        else:
            noc_us = bytes_of((self.E_KV - 1) * share, self.partial) / self.port
        adds_us = 2 * (self.E_KV - 1) * share / arch.vector_ops_per_cycle / self.cycles_per_us
        return dram / self.share + noc_us + adds_us, dram

    def _main_us(
        self, core: int, span: int, tile: AttentionTile, order: AttentionOrder, loads: Moved, o: Moved,
        compute_us: float, dma_us: float,
    ) -> float:  # fmt: skip
        arch, bits = self.arch, self.bits
        tile_q, tile_kv = min(tile.tile_q, len(self.strips(core)[0])), min(tile.tile_kv, span)
        lead, tail = loads, o
        if arch.input_buffers == 2:
            q, kv = bytes_of(tile_q * self.D, bits.a), bytes_of(tile_kv * self.W, bits.b)
            by_q, by_kv = 1, 1
            if self.is_multicast:
                by_q, by_kv = self.E_KV if order is AttentionOrder.QK else 1, self.E_Q
            first = (0.0 if "A" in self.residents else q / by_q) + (0.0 if "B" in self.residents else kv / by_kv)
            lead = Moved(min(first, loads.dram), min(first, loads.shared), min(q + kv, loads.port))
        if arch.output_buffers == 2:
            width = self.V if self.E_KV == 1 else self.V + _STATS
            stored = self.o_of(bytes_of(tile_q * width, self.store_bits()), 0)
            tail = Moved(*map(min, stored, o))
        blocks = self.blocks(tile_kv)
        tile_cycles = ceil_div(tile_q, arch.cube_m) * blocks / arch.cube_steps_per_cycle[self.problem.dtype]
        tile_cycles += 2 * arch.fill_drain_cycles + blocks * arch.weight_load_cycles
        tile_us = min(tile_cycles / self.cycles_per_us, compute_us)
        best_us = max(dma_us, compute_us + self.moved_us(lead, tail), tile_us + self.moved_us(loads, tail))
        return (1 - arch.overlap_frac) * (compute_us + dma_us) + arch.overlap_frac * best_us

    def evaluate(self, tile: AttentionTile, order: AttentionOrder) -> AttentionTruth:
        """Cost of a mapping: every core, one by one."""
        slowest: dict[str, float] = {"latency_us": -1.0}
        busiest, visits = 0.0, 0
        totals = dict.fromkeys(("q", "kv", "store", "spill", "scores", "reduction"), 0)
        for core, place in itertools.product(range(self.E_Q), range(self.E_KV)):
            walk = self.walk(core, place, tile, order)
            stream = self.stream_keys(place, tile, order) if self.is_multicast else 0
            rows = sum(map(len, self.strips(core)))
            for p_u in range(self.E_U):
                u = min(self.u, self.U - p_u * self.u)
                cost = self.core_cost(u, core, place, tile, order, walk, stream)
                slowest = cost if cost["latency_us"] > slowest["latency_us"] else slowest
                busiest = max(busiest, self.active_cores * cost["charged"])
                visits = max(visits, u * len(walk.visits))
                is_stored = "C" not in self.residents
                totals["q"] += math.ceil(cost["q"])
                totals["kv"] += math.ceil(cost["kv"])
                totals["store"] += int(cost["store"]) if is_stored or self.E_KV > 1 else 0
                totals["spill"] += math.ceil(cost["spill"]) if is_stored else 0
                totals["scores"] += int(cost["scores"])
                if self.E_KV > 1 and place == 0:
                    totals["reduction"] += bytes_of(u * rows * self.V, self.bits.output) if is_stored else 0
                    if self.arch.reduction == "dram":
                        totals["reduction"] += bytes_of(self.E_KV * u * rows * (self.V + _STATS), self.partial)
        return AttentionTruth(
            slowest["latency_us"], busiest, self.active_cores, visits, self.sram_used(tile),
            totals["q"], totals["kv"], totals["store"], totals["spill"], totals["reduction"], totals["scores"],
            tuple(slowest[name] for name in ("main_us", "compute_us", "dram_us", "reduction_us")),
        )  # fmt: skip


def _sizes(block: int, unit: int) -> list[int]:
    """Tile sizes of a dimension."""
    return [*range(unit, block, unit), block]


def mappings(arch: MulticoreSpec, problem: AttentionProblem) -> Iterator[tuple[Attention, AttentionMapping]]:
    """Every mapping that keeps every rule, also those whose partition amounts to a smaller one."""
    cores = range(1, arch.num_cores + 1)
    for parts in itertools.product(cores, cores, cores):
        partition = AttentionPartition(*parts)
        if math.prod(parts) > arch.num_cores or (arch.reduction == "none" and partition.P_KV > 1):
            continue
        for is_folded in (False, True) if problem.causal and problem.q_len > 1 and partition.P_Q > 1 else (False,):
            attention = Attention(arch, problem, partition, is_folded)
            if is_folded and attention.E_Q == 1:
                continue
            for tile in attention.tiles():
                if attention.fits(tile):
                    for order in AttentionOrder:
                        yield attention, AttentionMapping(partition, tile, order, is_folded)


def find_best(arch: MulticoreSpec, problem: AttentionProblem) -> tuple[AttentionMapping, AttentionTruth] | None:
    """The mapping of the smallest key."""
    found = [
        (_key(mapping, truth), mapping, truth)
        for attention, mapping in mappings(arch, problem)
        for truth in (attention.evaluate(mapping.tile, mapping.loop_order),)
    ]
    if not found:
        return None
    _, mapping, truth = min(found)
    return mapping, truth


def _key(mapping: AttentionMapping, truth: AttentionTruth) -> tuple[float, ...]:
    (P_U, P_Q, P_KV), tile, order, is_folded = mapping
    return (*truth[:5], P_KV, P_U, P_Q, is_folded, order, *tile)
