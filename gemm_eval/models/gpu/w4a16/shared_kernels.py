"""Costs that our W4A16 kernels share: launches, waves, streams of weights, cuts of K. See MODEL.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemm_eval.jit import entry_point, inlined_kernel, kernel
from gemm_eval.models.gpu import cost_kernels as kernels
from gemm_eval.models.gpu.terms import Times
from gemm_eval.models.gpu.w4a16 import family_kernels

SCHEDULERS = 4.0  # of an SM: instruction counts are sums over the warps of a CTA
BLOCK = 64  # columns and k of a packed block
UNIT_K = 128  # `w4a16_sm80` and `w4a16_sm90` cut K in multiples of it
TOKEN_ROW_BYTES = 128.0  # 64 k of 16 bits
SUM_BYTES = 4.0
CUT_UNITS, MOST_PARTS, MAX_CUT_WAVES, CUT_WAITS = 10, 8, 2, 4  # by these rules grouped kernels cut K (groups.cuh)
FEW_TOKENS = 48  # families/grouped.py
SHARES = (24, 48, 64, 80, 104, 128, 152, 200)  # tokens that wgmma is compiled for besides all of a tile
PAIRS_OF_WARP = 64  # columns that the threads of a warp have, two each
HOLD_FRAC = 0.5  # share of L2 that keeps what will be read again, where no coefficient says


@kernel
def norm3(a: float, b: float, c: float, d: float) -> float:
    """Return the 3-norm: the largest of four times, and a little more where two are alike: overlap is not perfect."""
    total = a * a * a + b * b * b + c * c * c + d * d * d
    return total ** (1.0 / 3.0)


@kernel
def norm4(a: float, b: float, c: float) -> float:
    """Return the 4-norm: work that waits for data in places of its own hides more of them than under the 3-norm."""
    a2, b2, c2 = a * a, b * b, c * c
    return np.sqrt(np.sqrt(a2 * a2 + b2 * b2 + c2 * c2))


@kernel
def _panel_bytes(tiles_m: int, tiles_n: int, in_flight: float, row: Any, a_bytes: float, w_bytes: float) -> float:
    """DRAM bytes of all waves when nothing stays in L2 between waves, under the raster of the kernel."""
    is_along_n = row["raster_order"] == 1
    is_sm90 = row["family"] == family_kernels.SM90 or row["family"] == family_kernels.SM90_FP8
    across, along = (tiles_m, tiles_n) if is_along_n else (tiles_n, tiles_m)
    if is_sm90:  # its raster goes `raster_swizzle` tiles along M before it steps along N
        across, along = tiles_m, tiles_n
    width = float(min(row["raster_swizzle"], across))
    run = in_flight / width
    if run > along:  # the wave goes on in the next band
        width = min(float(across), width * np.ceil(run / along))
        run = float(along)
    m_tiles, n_tiles = (width, run) if is_along_n or is_sm90 else (run, width)
    waves = max(1.0, tiles_m * tiles_n / in_flight)
    return float(waves * (m_tiles * a_bytes / tiles_m + n_tiles * w_bytes / tiles_n))


@kernel
def tiles_of_rows(t: kernels.ProblemTerms, cta_m: int) -> int:
    """Tiles along M, of all groups."""
    num = 0
    for i in range(len(t.group_rows)):
        num += t.group_counts[i] * kernels.ceil_div(t.group_rows[i], cta_m)
    return num


class Shares(NamedTuple):
    """The work of a grouped wgmma kernel's tiles, which divide the tokens of each group evenly.

    `matrix_frac` and `box_frac` are means over the tiles: the fractions of a tile's tokens that wgmma multiplies and
    that are copied to shared memory. Costs are in the units by which the kernel cuts K (shares.cuh).
    """

    matrix_frac: float
    box_frac: float
    cost: int  # of all tiles, for a unit of k
    most_cost: int  # of a tile


WHOLE = Shares(1.0, 1.0, 1, 1)
"""The work of tiles in a kernel of a single GEMM, which are always multiplied and copied whole."""


@kernel
def shares_of(t: kernels.ProblemTerms, cta_m: int) -> Shares:
    """Return the shares of tiles of all groups."""
    taken = copied = tiles = cost = most = 0
    for i in range(len(t.group_rows)):
        of_group = kernels.ceil_div(t.group_rows[i], cta_m)
        if of_group == 0:
            continue
        share = kernels.ceil_div(kernels.ceil_div(t.group_rows[i], of_group), 8) * 8
        compiled = cta_m
        for tokens in SHARES:
            if share <= tokens < compiled:
                compiled = tokens
        num, of_tile = t.group_counts[i] * of_group, max(share // 8 + 3, 8)
        taken += num * compiled
        copied += num * (min(cta_m, FEW_TOKENS) if share <= FEW_TOKENS else cta_m)
        tiles += num
        cost += num * of_tile
        most = max(most, of_tile)
    return Shares(taken / (tiles * cta_m), copied / (tiles * cta_m), cost, most)


@kernel
def is_cut_by_cost(shares: Shares, tiles: int, tiles_n: int, units: int, slots: int, cta_k: int) -> bool:
    """Return whether a grouped wgmma kernel cuts K (sm90.cu)."""
    whole = 0 if tiles < 2 * slots else (tiles // slots - 1) * slots  # only the last waves are cut
    cost = shares.cost * tiles_n * units * (tiles - whole) / tiles
    longest = units * (shares.cost * tiles_n / tiles if whole else float(shares.most_cost))
    rest = tiles % slots
    idle = slots - rest if rest else 0
    ctas = max(1.0, min(float(slots), cost // shares.most_cost, (tiles - whole) * MOST_PARTS))
    even_cost = cost / ctas * (1.0 + (1.0 / CUT_WAITS if cta_k < UNIT_K else 0.0))
    return bool(even_cost + 8 * CUT_UNITS < max(cost / slots + longest * idle / slots, longest))


class Launch(NamedTuple):
    """Facts of one launch of a kernel: the `ProblemTerms` that its cost reads, but for the arrays.

    To pass arrays on takes longer than all that is computed for a config that is slower than the best.
    """

    num: int  # launches
    G: int
    M: int
    K: int
    N: int
    tiles_m: int  # tiles of clusters along M, of all groups
    rows: int
    a_bytes: float
    b_bytes: float
    scale_bytes: float
    c_bytes: float
    stay_frac: float
    a_read_bytes: float
    b_read_bytes: float
    line_waste: float
    shares: Shares


@inlined_kernel
def launch_of(row: Any, t: kernels.ProblemTerms) -> Launch:
    """Return what each launch of a kernel does; a batch by a kernel of one GEMM is as many launches."""
    G, cluster_rows = t.G, row["cta_m"] * row["cluster_m"]
    if G == 1 or row["family"] in family_kernels.GROUPED_FAMILIES:
        tiles_m = kernels.ceil_div(t.M, cluster_rows) if G == 1 else tiles_of_rows(t, cluster_rows)
        return Launch(
            1, G, t.M, t.K, t.N, tiles_m, t.rows, t.a_bytes, t.b_bytes, t.scale_bytes, t.c_bytes, t.stay_frac,
            t.a_read_bytes, t.b_read_bytes, t.line_waste,
            shares_of(t, row["cta_m"]) if row["family"] == family_kernels.SM90_GROUPED else WHOLE,
        )  # fmt: skip
    return Launch(
        G, 1, t.M, t.K, t.N, kernels.ceil_div(t.M, cluster_rows), t.M, t.a_bytes / G, t.b_bytes / G, t.scale_bytes / G,
        t.c_bytes / G, t.stay_frac, t.a_read_bytes / G, t.b_read_bytes / G, t.line_waste, WHOLE,
    )  # fmt: skip


@kernel
def are_alike(tiles: int, ctas: int) -> bool:
    """Return True if the CTAs of a stream-K kernel are at one or two places of K at any time: they read as others do.

    They are at ctas / gcd(tiles, ctas) places, and that is 1 or 2 where twice the tiles are a multiple of the CTAs.
    """
    return bool(2 * tiles % ctas == 0)


@kernel
def l2_share(p: Any, c: Any, active_sms: int) -> float:
    """Bytes a cycle for each SM where hardly two CTAs are at the same place of K, so that L2 answers each by itself."""
    return p["l2_peak_bytes_per_us"] / p["cycles_per_us"] * c["l2_frac"] / active_sms


@kernel
def panel_rereads(row: Any, t: Launch, hold_bytes: float, tiles_m: int, tiles_n: int, in_flight: float) -> float:
    """Bytes that DRAM gives again to CTAs at the same place of K, which share panels wave by wave."""
    both = t.a_bytes + t.b_bytes + t.scale_bytes
    if hold_bytes >= both or tiles_m == 1 or tiles_n == 1 or t.G > 1:  # those of a group are done at about one time
        return 0.0
    panels = _panel_bytes(tiles_m, tiles_n, in_flight, row, t.a_bytes, t.b_bytes + t.scale_bytes)
    return max(0.0, (1.0 - hold_bytes / both) * (panels - both))


class Loop(NamedTuple):
    """The main loop of a config before its times are combined; what a form of kernel does not have is 0."""

    first: float  # cycles of all whole rounds of a CTA's SM
    last: float  # and of the rest
    share: float  # of the work, that whole rounds have
    rounds: int
    rest: int  # CTAs, or clusters, after the last whole round
    copied_rows: float  # of A, by a cluster of wgmma
    num_blocks: float  # of 64 k, of all tiles of wgmma
    prologue_us: float
    chip_us: float  # that SMs take
    over_us: float  # between rounds, in which no loads are under way
    matrix_us: float
    dequant_us: float
    overhead_us: float  # between tiles
    l2_us: float
    dram_us: float
    outside_us: float
    store_us: float
    reduction_us: float
    busy_us: float  # tensor cores, at the highest clock
    power: float  # that data on their way take, as a share of what tensor cores do
    read_bytes: float
    ctas: int
    tiles: int
    waves: int
    last_ctas: int  # of the last wave
    active_sms: int


@kernel
def finish(p: Any, row: Any, loop: Loop, main_us: float) -> kernels.ConfigCost:
    """Add the clock under tensor load and what is in front of the main loop, which takes `main_us`."""
    loaded_us = kernels.loaded_time_us(p, main_us, loop.busy_us, 1.0 + loop.power)
    latency_us = p["launch_us"] + loop.prologue_us + loaded_us + loop.store_us
    chip_us = loop.chip_us + loop.over_us
    matrix_us = min(loop.matrix_us, chip_us)
    dequant_us = min(loop.dequant_us, chip_us - matrix_us)
    overhead_us = min(loop.overhead_us, chip_us - matrix_us - dequant_us)
    times = Times(
        p["launch_us"], loop.prologue_us, matrix_us, dequant_us, chip_us - matrix_us - dequant_us - overhead_us,
        overhead_us, loop.l2_us, loop.dram_us, loop.outside_us, loop.store_us, loop.reduction_us, loaded_us - main_us,
        0.0,
    )  # fmt: skip
    return kernels.ConfigCost(
        latency_us, times, main_us, min(1.0, loop.busy_us / main_us), loop.read_bytes, loop.ctas, loop.tiles,
        loop.waves, loop.last_ctas, loop.active_sms, row["raster_order"] * kernels.RASTER_CODE + row["raster_swizzle"],
    )  # fmt: skip


@kernel
def shared_step(resident: float, work: float, serial: float, ingest: float) -> float:
    """Cycles of a step of a CTA that shares its SM with `resident` - 1 others: they fill each other's gaps."""
    busy, loads = resident * work, resident * ingest
    return np.sqrt(busy * busy + serial * serial + loads * loads)


_PARTS_AT_ONCE = 4  # sums that `w4a16_gemv*` load together
_UNIT_STEPS, _PART_STEPS = 4, 2  # by which grouped kernels cut K themselves (streaming.cuh)
_RAMP_BYTES = 4e6  # of weights, that fill the queues half


@kernel
def _sums_cycles(row: Any, c: Any, t: Launch) -> float:
    """Cycles at the end of a streaming CTA: sums of all warps to shared memory, and from there one sum of them."""
    teams = row["cta_k"] // BLOCK
    stored = teams * (row["cta_m"] * (row["cta_n"] * SUM_BYTES)) / c["sums_bytes_per_cycle"]
    return float(stored + teams * _passes(row, t) * c["team_sum_cycles"])


@kernel
def _passes(row: Any, t: Launch) -> int:
    """Return rounds of all threads of a streaming CTA over the pairs of columns of all tokens."""
    return kernels.ceil_div(min(row["cta_m"], t.M) * row["cta_n"], PAIRS_OF_WARP * row["num_warps"])


@kernel
def _dram_bytes_per_us(p: Any, dram_frac: float) -> float:
    """DRAM rate at a share of what a large read reaches; never more than the data sheet says."""
    return float(min(p["dram_peak_bytes_per_us"] * dram_frac, p["dram_spec_bytes_per_us"]))


@kernel
def parts_of_groups(row: Any, tiles_m: int, K: int, N: int) -> int:
    """Parts of K of all tiles, as a grouped kernel finds them on the GPU."""
    tiles_n = kernels.ceil_div(N, row["cta_n"])
    tiles, slots = tiles_m * tiles_n, row["grid_cap"]
    teams, blocks = row["cta_k"] // BLOCK, kernels.ceil_div(K, BLOCK)
    best, least = 1, kernels.ceil_div(tiles, slots) * (kernels.ceil_div(blocks, teams) + _UNIT_STEPS)
    if tiles_m > max(1, MAX_CUT_WAVES * slots // tiles_n):
        return best
    for parts in range(2, MOST_PARTS + 1):
        units = tiles * parts
        if parts * teams > blocks or units > MAX_CUT_WAVES * slots:
            break
        steps = kernels.ceil_div(kernels.ceil_div(blocks, parts), teams)
        cost = kernels.ceil_div(units, slots) * (steps + _UNIT_STEPS) + (parts - 1) * _PART_STEPS
        if cost < least:
            best, least = parts, cost
    return best


@kernel
def streaming_loop(p: Any, row: Any, c: Any, t: Launch, split: int) -> Loop:
    """Return the main loop of a config."""
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    tiles_m, tiles_n = t.tiles_m, kernels.ceil_div(t.N, cta_n)
    tiles = tiles_m * tiles_n
    if split == kernels.STREAM_K:
        split = parts_of_groups(row, tiles_m, t.K, t.N)
    ctas = tiles * split
    teams = row["cta_k"] // BLOCK
    team_warps = row["num_warps"] // teams
    blocks = kernels.ceil_div(kernels.ceil_div(t.K, BLOCK), split)
    steps = kernels.ceil_div(blocks, teams)
    slots = row["grid_cap"]
    num_sms = p["num_sms"]
    cycles_per_us = p["cycles_per_us"]
    rounds = ctas // slots
    rest = ctas - rounds * slots
    waves = rounds + (1 if rest > 0 else 0)
    is_mma = row["family"] in family_kernels.GEMV_MMA_FAMILIES

    # a step, in which all teams but those of the last blocks work
    issue = row["instructions"] / SCHEDULERS * c["issue"]
    serial = c["step_cycles"] + row["instructions"] / team_warps * c["serial_cycles"]
    matrix = row["matrix_cycles"]
    work = blocks / steps * (issue + matrix)
    ingest = first_start = start = part_cycles = 0.0
    dram_frac = 1.0
    resident = float(row["ctas_per_sm"])
    if is_mma:
        ingest = blocks / steps * row["weight_bytes"] / (kernels.SM_L2_BYTES_PER_CYCLE * c["sm_l2_frac"])
        dram_frac = c["dram_frac"]
        part_cycles = c["part_cycles"]
        # at first all CTAs of an SM start at once, later each when another ends
        first_start = c["cta_cycles"] + c["cta_launch_cycles"] * min(resident, ctas / num_sms)
        start = c["cta_cycles"] + c["cta_launch_cycles"]
    if t.G > 1:
        serial += c["group_load_cycles"] / max(1, row["num_stages"] - 1)
        first_start += c["groups_us"] * cycles_per_us
        start += c["group_tile_cycles"]
    rows = min(cta_m, t.M)
    sums = _sums_cycles(row, c, t)
    first = rounds * steps * shared_step(resident, work, serial, ingest) if rounds > 0 else 0.0
    last = 0.0
    left = np.ceil(rest / num_sms)
    if rest > 0:
        last = steps * shared_step(left, work, serial, ingest)
    chip_us = (first + last) / cycles_per_us
    over_us = (waves - 1) * (start + sums) / cycles_per_us  # no loads are under way, so DRAM does not hide it

    reduction_us = 0.0
    if split > 1:
        trips = _passes(row, t) * (split // _PARTS_AT_ONCE + split % _PARTS_AT_ONCE)
        cycles = trips * part_cycles + split * rows * (cta_n * SUM_BYTES) / c["part_read_bytes_per_cycle"]
        reduction_us = c["cut_us"] * waves + cycles / cycles_per_us

    w_bytes = t.b_bytes + t.scale_bytes
    read_bytes = t.a_read_bytes + t.b_read_bytes
    readers = float(tiles_m)  # tiles that read weights
    if t.G > 1:
        readers /= t.G
    elif ctas > slots:  # not all tiles of tokens run at once: later ones read the weights again
        read_bytes += max(0.0, 1.0 - p["l2_bytes"] * c["l2_hold_frac"] / w_bytes) * w_bytes * (tiles_m - 1)
    dram_us = (read_bytes + t.c_bytes * (1.0 - t.stay_frac)) / _dram_bytes_per_us(p, dram_frac)
    l2_us = 0.0
    if is_mma:
        waste = 1.0 + c["line_waste"] * t.line_waste
        tokens = tiles_n * (t.rows if t.G > 1 else tiles_m * rows) * (t.K * p["a_elem_bytes"]) * waste
        l2_us = (tokens + w_bytes * readers) / (p["l2_peak_bytes_per_us"] * c["l2_frac"])
    prologue_us = (first_start + sums) / cycles_per_us
    if not is_mma:
        prologue_us += c["ramp_us"] * w_bytes / (w_bytes + _RAMP_BYTES)
    done = (rounds * resident + left) * blocks  # blocks of 64 k that an SM works through
    last_ctas = rest if rest > 0 else ctas
    return Loop(
        first=0.0, last=0.0, share=0.0, rounds=rounds, rest=rest, copied_rows=0.0, num_blocks=0.0,
        prologue_us=prologue_us, chip_us=chip_us, over_us=over_us, matrix_us=done * matrix / cycles_per_us,
        dequant_us=done * issue / cycles_per_us, overhead_us=over_us, l2_us=l2_us, dram_us=dram_us, outside_us=0.0,
        store_us=0.0, reduction_us=reduction_us, busy_us=0.0, power=0.0, read_bytes=read_bytes, ctas=ctas, tiles=tiles,
        waves=waves, last_ctas=last_ctas, active_sms=min(ctas, num_sms),
    )  # fmt: skip


@kernel
def streaming_cost(p: Any, row: Any, c: Any, t: Launch, split: int) -> kernels.ConfigCost:
    """Kernels for few tokens: every team of warps streams its own blocks of k, and sums are added at the end."""
    s = streaming_loop(p, row, c, t, split)
    if t.G > 1:  # CTAs that go on are at different places: loads of others hide what one does between two tiles
        return finish(p, row, s, norm4(s.chip_us + s.over_us, s.dram_us, s.l2_us) + s.reduction_us)
    return finish(p, row, s, norm3(s.chip_us, s.dram_us, s.l2_us, 0.0) + s.over_us + s.reduction_us)


MAX_STREAMING_TOKENS = 64
_MAX_STREAMING_CUTS = 5
_MAX_WAVES_OF_SPLIT, _MAX_SPLIT = 4, 32  # of `w4a16_sm80`
MAX_SPLITS = 9
"""Most ways to cut K that a kernel has for one GEMM, the whole K among them."""


@kernel
def _add_cut(cuts: Any, num: int, parts: int) -> int:
    """Insert `parts` into the sorted cuts[1:num], once; cuts[0] is the whole K."""
    place = num
    while place > 1 and cuts[place - 1] >= parts:
        place -= 1
    if place < num and cuts[place] == parts:
        return num
    for at in range(num, place, -1):
        cuts[at] = cuts[at - 1]
    cuts[place] = parts
    return num + 1


@kernel
def list_splits(p: Any, row: Any, t: kernels.ProblemTerms, splits: Any) -> int:
    """Write the ways to cut K that a kernel has for these sizes, at most `MAX_SPLITS`, to `splits`; returns how many.

    0: the kernel cannot run the GEMM. These are the rules of `gemm_eval.kernels`; tests compare the two.
    """
    M, K, N = t.M, t.K, t.N
    cta_m, cta_n = row["cta_m"], row["cta_n"]
    is_grouped = row["family"] in family_kernels.GROUPED_FAMILIES
    if (is_grouped and t.G == 1) or (t.is_grouped and not is_grouped):
        return 0
    tiles = (tiles_of_rows(t, cta_m) if is_grouped else kernels.ceil_div(M, cta_m)) * kernels.ceil_div(N, cta_n)
    num_sms = p["num_sms"]
    expected = row["expected_ctas"]
    splits[0] = 1
    num = 1
    if row["family"] in family_kernels.STREAMING_FAMILIES:
        if M > MAX_STREAMING_TOKENS:
            return 0
        if is_grouped:
            splits[num] = 0
            return num + 1 if parts_of_groups(row, tiles_of_rows(t, cta_m), K, N) > 1 else num
        teams, blocks = row["cta_k"] // BLOCK, kernels.ceil_div(K, BLOCK)
        for at_once in range(2):
            for waves in range(1, 5):
                ctas = num_sms * waves * (expected if at_once else 1)
                parts = min(ctas // tiles, blocks // teams)
                if parts > 1:
                    steps = kernels.ceil_div(kernels.ceil_div(blocks, parts), teams)
                    parts = kernels.ceil_div(blocks, steps * teams)
                    if parts > 1:
                        num = _add_cut(splits, num, parts)
        several = num - 1
        if several > _MAX_STREAMING_CUTS:  # first, last and evenly between
            for at in range(_MAX_STREAMING_CUTS):
                splits[1 + at] = splits[1 + at * (several - 1) // (_MAX_STREAMING_CUTS - 1)]
            num = 1 + _MAX_STREAMING_CUTS
        return num
    units = kernels.ceil_div(K, UNIT_K)
    if is_grouped:
        slots = row["grid_cap"]
        if row["family"] == family_kernels.SM90_GROUPED:
            splits[num] = 0
            tiles_n = kernels.ceil_div(N, cta_n)
            return num + 1 if is_cut_by_cost(shares_of(t, cta_m), tiles, tiles_n, units, slots, row["cta_k"]) else num
        ctas = min(slots, tiles * units, tiles * MOST_PARTS)
        if kernels.ceil_div(tiles * units, ctas) + CUT_UNITS >= kernels.ceil_div(tiles, slots) * units:
            return num
        splits[num] = 0
        return num + 1 if tiles <= MAX_CUT_WAVES * slots else num
    if row["family"] in family_kernels.MULTISTAGE_FAMILIES:
        if units == 1 or tiles > _MAX_WAVES_OF_SPLIT * expected * num_sms:
            return num
        for ctas in (1, max(1, expected // 2), expected, 2 * expected):
            parts = min(ctas * num_sms // tiles, units, _MAX_SPLIT)
            if parts > 1:
                num = _add_cut(splits, num, parts)
        splits[num] = 0
        return num + 1
    if row["family"] == family_kernels.SM90_CLUSTER:
        splits[0] = row["cluster_k"]
        return 1 if units >= splits[0] and tiles * splits[0] <= row["expected_cap"] else 0
    if kernels.ceil_div(M, cta_m) < row["cluster_m"] or kernels.ceil_div(N, cta_n) < row["cluster_n"]:
        return 0
    tiles = kernels.ceil_div(M, cta_m * row["cluster_m"]) * kernels.ceil_div(N, cta_n * row["cluster_n"])
    slots = row["expected_cap"] // (row["cluster_m"] * row["cluster_n"])
    for parts in (2, 3, 4, 6, 8, 12, 16):
        if parts <= units and tiles * parts <= 2 * slots:
            splits[num] = parts
            num += 1
    if tiles % slots != 0 and units > 1:
        splits[num] = 0
        num += 1
    return num


@entry_point
def splits_of_row(
    params: Any, candidates: Any, index: int, K: int, N: int, group_rows: Any, group_counts: Any, is_grouped: bool,
    splits: Any,
) -> int:  # fmt: skip
    """`list_splits` of one of the candidates, for groups of rows, the most first, or a batch."""
    G = rows = 0
    for i in range(len(group_rows)):
        G += group_counts[i]
        rows += group_counts[i] * group_rows[i]
    M = group_rows[0]
    t = kernels.ProblemTerms(
        G, M, K, N, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, rows, group_rows, group_counts,
        is_grouped,
    )  # fmt: skip
    return int(list_splits(params[0], candidates[index], t, splits))
