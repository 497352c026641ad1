"""Numba kernels of time on multi-core chips: what a core moves, overlap by a fraction, and pipelines. See MODEL.md."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemm_eval.jit import inlined_kernel, kernel


@kernel
def ceil_div(a: int, b: int) -> int:
    """Integer division rounded up."""
    return (a + b - 1) // b


@kernel
def bytes_of(elems: int, half_bits: int) -> int:
    """Bytes of `elems` elements of so many half bits each, rounded up; in two parts, which do not overflow."""
    return (elems >> 4) * half_bits + (((elems & 15) * half_bits + 15) >> 4)


@kernel
def reload_factors(order: int, T_m: int, T_n: int, T_k: int) -> tuple[int, int, int]:
    """Return how often each element of A and B is loaded, and each element of C leaves SRAM, per batch element.

    A loop that does not index an operand repeats its loads if a loop that does, with more than one trip, is inside it.
    """
    if order == 0:  # MNK
        return (T_n if T_k > 1 else 1, T_m if T_k > 1 or T_n > 1 else 1, 1)
    if order == 1:  # MKN
        return (1, T_m if T_k > 1 or T_n > 1 else 1, T_k if T_n > 1 else 1)
    if order == 2:  # NMK
        return (T_n if T_k > 1 or T_m > 1 else 1, T_m if T_k > 1 else 1, 1)
    if order == 3:  # NKM
        return (T_n if T_k > 1 or T_m > 1 else 1, 1, T_k if T_m > 1 else 1)
    if order == 4:  # KMN
        return (1, T_m if T_n > 1 else 1, T_k if T_m > 1 or T_n > 1 else 1)
    return (T_n if T_m > 1 else 1, 1, T_k if T_m > 1 or T_n > 1 else 1)  # KNM


@kernel
def scale_rows(p: Any, k: int, T_k: int) -> int:
    """Rows of scales that one pass over B loads: one for each group that a tile touches."""
    return ceil_div(k, p["group_size"]) if p["group_size"] > 0 else T_k


@kernel
def store_half_bits(p: Any, E_K: int) -> int:
    """Half bits of an element of C as the main loop stores it: a partial result when K is split over cores."""
    if E_K == 1:
        return p["c_half_bits"]
    return p["spill_half_bits"] if p["reduction"] == 1 else 0  # over the network it is sent on, not stored


class Traffic(NamedTuple):
    """Bytes of a core by what they pass, each by the number of cores that share it there."""

    dram: float  # a written byte counts as many read ones as take as long
    shared: float  # the memory between DRAM and SRAM
    port: float


@inlined_kernel
def add_traffic(x: Traffic, y: Traffic) -> Traffic:
    """Both."""
    return Traffic(x.dram + y.dram, x.shared + y.shared, x.port + y.port)


@inlined_kernel
def traffic_us(p: Any, blk: Any, moved: Traffic) -> float:
    """Time in us to move these bytes: all three work at the same time."""
    us: float = moved.dram / blk.dram_share
    if p["has_shared"]:  # a division less for all other chips
        us = max(us, moved.shared / blk.shared_share)
    if p["has_noc"]:
        us = max(us, moved.port / p["noc_bytes_per_us"])
    return us


@inlined_kernel
def c_traffic(p: Any, blk: Any, stored: float, spilled: float) -> Traffic:
    """Return what bytes of C pass that leave a core for good, and others that leave it and come back."""
    spilled *= p["c_dram"]
    written = spilled
    if blk.E_K > 1 or not p["c_is_resident"]:  # partial results of a split K meet in DRAM, wherever C lies
        written += stored
    return Traffic(written * blk.write_cost + spilled, written + spilled, written + spilled)


@kernel
def dma_us(p: Any, blk: Any, a: float, b: float, c: float) -> float:
    """Time in us to move these bytes: A, B with its scales, and C."""
    charged = a / blk.E_N + b / blk.E_M + c if p["is_multicast"] else a + b + c
    us: float = charged / blk.dram_share
    if p["has_noc"]:
        us = max(us, (a + b + c) / p["noc_bytes_per_us"])
    return us


@inlined_kernel
def loads_traffic(p: Any, blk: Any, a: float, b: float) -> Traffic:
    """Return what bytes of A, and of B with its scales, pass on their way to a core, where none is kept on the way."""
    a_shared = a / blk.E_N if p["is_multicast"] else a
    b_shared = b / blk.E_M if p["is_multicast"] else b
    moved = a_shared * p["a_dram"] + b_shared * p["b_dram"]
    return Traffic(moved, moved, a + b)


@kernel
def overlap_main_us(
    p: Any, blk: Any, loads: Traffic, c: Traffic, compute_us: float, all_dma_us: float,
    tile_m: int, tile_n: int, tile_k: int,
) -> float:  # fmt: skip
    """Time in us of all visits of a core, which grows with every argument; tiles are cut to the block."""
    tail = c
    if p["output_buffers"] == 2:
        tail = c_traffic(p, blk, float(bytes_of(tile_m * tile_n, store_half_bits(p, blk.E_K))), 0.0)
    loads_us = traffic_us(p, blk, add_traffic(loads, tail))
    lead_us = loads_us
    if p["input_buffers"] == 2:
        lead_a = bytes_of(tile_m * tile_k, p["a_half_bits"])
        lead_b = bytes_of(tile_k * tile_n, p["b_half_bits"])
        if p["is_quantized"]:
            lead_b += bytes_of(scale_rows(p, tile_k, 1) * tile_n, p["group_half_bits"])
        lead = loads_traffic(p, blk, float(lead_a), float(lead_b))
        lead = Traffic(min(lead.dram, loads.dram), lead.shared, lead.port)  # cores that share a tile load it once
        lead_us = traffic_us(p, blk, add_traffic(lead, tail))
    steps = ceil_div(tile_m, p["cube_m"]) * ceil_div(tile_n, p["cube_n"]) * ceil_div(tile_k, p["cube_k"])
    fills = ceil_div(tile_n, p["cube_n"]) * ceil_div(tile_k, p["cube_k"])
    tile_cycles = steps / p["steps_per_cycle"] + p["fill_drain_cycles"] + fills * p["weight_load_cycles"]
    tile_us = tile_cycles / p["cycles_per_us"]
    best_us = max(all_dma_us, compute_us + lead_us, tile_us + loads_us)
    return (1.0 - p["overlap_frac"]) * (compute_us + all_dma_us) + p["overlap_frac"] * best_us


# Loops of each order, outermost first, as dimension numbers: m 0, n 1, k 2.
_LOOPS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


@kernel
def _num_classes(trips: int) -> int:
    return min(trips, 4)


@kernel
def _class_index(which: int, trips: int) -> int:
    """Loop index that stands for class `which`: 0 first, then the middle, last but one, last."""
    if trips <= 3 or which <= 1:
        return which
    return trips - 4 + which


@kernel
def _class_count(which: int, trips: int) -> int:
    return trips - 3 if trips > 3 and which == 1 else 1


@kernel
def _size(index: int, trips: int, tile: int, block: int) -> int:
    return block - (trips - 1) * tile if index == trips - 1 else tile


@kernel
def _changed(i0: int, i1: int, i2: int, T1: int, T2: int) -> int:
    """Bit set of the loops (1 outer, 2 middle, 4 inner; 8 all) whose index differs from that of the visit before."""
    if i2 > 0:
        return 4
    if i1 > 0:
        return 2 | (4 if T2 > 1 else 0)
    if i0 > 0:
        return 1 | (2 if T1 > 1 else 0) | (4 if T2 > 1 else 0)
    return 8  # a new batch element, or the first visit of all


@kernel
def _pick(dim: int, d0: int, d1: int, i0: int, i1: int, i2: int) -> int:
    """Return the one over dimension `dim` of the loop indices i0, i1, i2 over dimensions d0, d1 and the third."""
    if dim == d0:
        return i0
    return i1 if dim == d1 else i2


@kernel
def _bit(dim: int, d0: int, d1: int) -> int:
    if dim == d0:
        return 1
    return 2 if dim == d1 else 4


@kernel
def pipeline_main_us(
    p: Any, blk: Any, g: int, m: int, n: int, k: int, tile_m: int, tile_n: int, tile_k: int, order: int
) -> float:
    """Time in us of all tile visits of one core with block (g, m, n, k)."""
    total: float = pipeline_part_us(p, blk, g, m, n, k, tile_m, tile_n, tile_k, order, 0, 0, blk)
    return total + pipeline_first_us(p, blk, m, n, k, tile_m, tile_n, tile_k)


@kernel
def pipeline_first_us(p: Any, blk: Any, m: int, n: int, k: int, tile_m: int, tile_n: int, tile_k: int) -> float:
    """Time in us of the first loads of a core, which have nothing to hide behind."""
    first_k = min(tile_k, k)
    first_a = min(tile_m, m) * first_k * (p["a_half_bits"] / 16.0)
    return dma_us(p, blk, first_a, _b_tile_bytes(p, first_k, min(tile_n, n)), 0.0)


@kernel
def _b_tile_bytes(p: Any, k: int, n: int) -> float:
    """Bytes of a tile of B and of its scales, not rounded."""
    num_bytes: float = k * n * (p["b_half_bits"] / 16.0)
    if p["is_quantized"]:
        group = p["group_size"]
        num_bytes += (ceil_div(k, group) if group > 0 else 1) * n * (p["group_half_bits"] / 16.0)
    return num_bytes


@kernel
def pipeline_part_us(
    p: Any, blk: Any, g: int, m: int, n: int, k: int, tile_m: int, tile_n: int, tile_k: int, order: int,
    before_m: int, after_m: int, after_blk: Any,
) -> float:  # fmt: skip
    """Time in us of all tile visits of g batch elements, less the first loads of all.

    Args:
        before_m, after_m: rows of the block that this core computes before and after these; 0: none.
        after_blk: whose E_M counts for the loads of the next; `blk` where there is none.
    """
    d0, d1, d2 = _LOOPS[order]
    T_m = ceil_div(m, tile_m)
    T_n = ceil_div(n, tile_n)
    T_k = ceil_div(k, tile_k)
    T0 = T_m if d0 == 0 else (T_n if d0 == 1 else T_k)
    T1 = T_m if d1 == 0 else (T_n if d1 == 1 else T_k)
    T2 = T_m if d2 == 0 else (T_n if d2 == 1 else T_k)
    a_mask = 8 | _bit(0, d0, d1) | _bit(2, d0, d1)
    b_mask = 8 | _bit(1, d0, d1) | _bit(2, d0, d1)
    c_mask = 8 | _bit(0, d0, d1) | _bit(1, d0, d1)

    a_size = p["a_half_bits"] / 16.0
    partial_size = p["spill_half_bits"] / 16.0
    final_size = store_half_bits(p, blk.E_K) / 16.0
    cube_m = p["cube_m"]
    cube_n = p["cube_n"]
    cube_k = p["cube_k"]
    is_exposed = p["output_buffers"] == 1

    total = 0.0
    num_b = min(g, 3)
    for cb in range(num_b):
        count_b = g - 2 if cb == 1 and g > 2 else 1
        is_last_b = cb == num_b - 1
        for c0 in range(_num_classes(T0)):
            i0 = _class_index(c0, T0)
            count_0 = count_b * _class_count(c0, T0)
            for c1 in range(_num_classes(T1)):
                i1 = _class_index(c1, T1)
                count_1 = count_0 * _class_count(c1, T1)
                for c2 in range(_num_classes(T2)):
                    i2 = _class_index(c2, T2)
                    count = count_1 * _class_count(c2, T2)
                    is_first = cb == 0 and i0 == 0 and i1 == 0 and i2 == 0
                    is_last = is_last_b and i0 == T0 - 1 and i1 == T1 - 1 and i2 == T2 - 1
                    loads_blk = blk
                    changed = _changed(i0, i1, i2, T1, T2)
                    im = _pick(0, d0, d1, i0, i1, i2)
                    jn = _pick(1, d0, d1, i0, i1, i2)
                    ik = _pick(2, d0, d1, i0, i1, i2)
                    size_m = _size(im, T_m, tile_m, m)
                    size_n = _size(jn, T_n, tile_n, n)
                    size_k = _size(ik, T_k, tile_k, k)

                    # compute of this visit
                    steps = ceil_div(size_m, cube_m) * ceil_div(size_n, cube_n) * ceil_div(size_k, cube_k)
                    fills = ceil_div(size_n, cube_n) * ceil_div(size_k, cube_k)
                    cycles = steps / p["steps_per_cycle"] + p["fill_drain_cycles"] + fills * p["weight_load_cycles"]
                    if p["has_dequant_copy"]:
                        vector = 0.0
                        if changed & b_mask:
                            vector = size_k * size_n * p["dequant_ops_per_elem"] / p["vector_ops_per_cycle"]
                        cycles = max(cycles, vector) if p["vector_is_concurrent"] else cycles + vector
                    compute_us = cycles / p["cycles_per_us"]

                    # loads and refill of the next visit
                    a = b = refill = store = 0.0
                    next_changed = 8
                    if is_last and after_m > 0:
                        loads_blk = after_blk
                        a = min(tile_m, after_m) * min(tile_k, k) * a_size
                        b = _b_tile_bytes(p, min(tile_k, k), min(tile_n, n))
                    if not is_last:
                        j0, j1, j2 = i0, i1, i2 + 1
                        if j2 == T2:
                            j2 = 0
                            j1 += 1
                            if j1 == T1:
                                j1 = 0
                                j0 += 1
                                if j0 == T0:
                                    j0 = 0
                        next_changed = _changed(j0, j1, j2, T1, T2)
                        jm = _pick(0, d0, d1, j0, j1, j2)
                        jn_ = _pick(1, d0, d1, j0, j1, j2)
                        jk = _pick(2, d0, d1, j0, j1, j2)
                        next_m = _size(jm, T_m, tile_m, m)
                        next_n = _size(jn_, T_n, tile_n, n)
                        next_k = _size(jk, T_k, tile_k, k)
                        if next_changed & a_mask:
                            a = next_m * next_k * a_size
                        if next_changed & b_mask:
                            b = _b_tile_bytes(p, next_k, next_n)
                        if next_changed & c_mask and jk > 0:
                            refill = next_m * next_n * partial_size

                    if is_exposed:
                        if next_changed & c_mask:
                            store = size_m * size_n * (final_size if ik == T_k - 1 else partial_size)
                        loads_us = dma_us(p, loads_blk, a, b, 0.0)
                        step_us = max(compute_us, loads_us) + dma_us(p, blk, 0.0, 0.0, store + refill)
                    else:
                        # the C tile that left after the visit before this one
                        if is_first and before_m > 0:
                            hm = before_m - (ceil_div(before_m, tile_m) - 1) * tile_m
                            store = hm * _size(T_n - 1, T_n, tile_n, n) * final_size
                        if changed & c_mask and not is_first:
                            h0, h1, h2 = i0, i1, i2 - 1
                            if h2 < 0:
                                h2 = T2 - 1
                                h1 -= 1
                                if h1 < 0:
                                    h1 = T1 - 1
                                    h0 -= 1
                                    if h0 < 0:
                                        h0 = T0 - 1
                            hm = _size(_pick(0, d0, d1, h0, h1, h2), T_m, tile_m, m)
                            hn = _size(_pick(1, d0, d1, h0, h1, h2), T_n, tile_n, n)
                            hk = _pick(2, d0, d1, h0, h1, h2)
                            store = hm * hn * (final_size if hk == T_k - 1 else partial_size)
                        step_us = max(compute_us, dma_us(p, loads_blk, a, b, refill + store))
                        if is_last and after_m == 0:
                            step_us += dma_us(p, blk, 0.0, 0.0, size_m * size_n * final_size)
                    total += count * step_us
    return total


@kernel
def pipeline_us_if_any(
    p: Any, blk: Any, g: int, m: int, n: int, k: int, tile_m: int, tile_n: int, tile_k: int, order: int
) -> float:
    """Return `pipeline_main_us` where that is the timing, else 0."""
    return pipeline_main_us(p, blk, g, m, n, k, tile_m, tile_n, tile_k, order) if p["is_pipeline"] else 0.0
