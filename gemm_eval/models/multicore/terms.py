"""Parts of the time of a GEMM on a multi-core chip: the terms of `GEMMResult.breakdown`, and what can limit it.

A term is a field of `Times` and a line of `TERMS`; records, breakdowns, bounds and what `explain` says follow.
"""

from typing import NamedTuple


class Times(NamedTuple):
    """The terms of the slowest core, in us, in the order of breakdowns; those of the main loop stand together."""

    launch_us: float
    sync_us: float
    pack_us: float
    matrix_us: float
    fill_drain_us: float
    vector_us: float
    dram_a_us: float
    dram_b_us: float
    dram_c_us: float
    noc_wait_us: float
    reduction_dram_us: float
    reduction_noc_us: float
    reduction_add_us: float


class Term(NamedTuple):
    """A term."""

    phase: str  # which of `PHASES` it is part of
    meaning: str  # what that time goes to


MAIN = "main"
"""The phase whose terms overlap; of it the longer side limits: the matrix or vector unit, DRAM or a core's port."""

PHASES = (MAIN, "launch", "reduction", "sync", "pack")
"""What follows one another, so that phases add up to the latency; of equal ones the first limits."""

TERMS: dict[str, Term] = {
    "launch_us": Term("launch", "the fixed cost of a GEMM and of its tasks, and what a queue makes it wait"),
    "sync_us": Term("sync", "waking the other cores, and waiting for them"),
    "pack_us": Term("pack", "copying operands into the order in which the main loop reads them"),
    "matrix_us": Term(MAIN, "steps of the matrix unit"),
    "fill_drain_us": Term(MAIN, "the matrix unit's pipeline, filled and drained at every tile visit, and its weights"),
    "vector_us": Term(MAIN, "the vector unit, which dequantizes the weights"),
    "dram_a_us": Term(MAIN, "A from DRAM, at a core's share of the bandwidth"),
    "dram_b_us": Term(MAIN, "B and its scales from DRAM"),
    "dram_c_us": Term(MAIN, "C to DRAM, spills and refills of partial sums with it"),
    "noc_wait_us": Term(MAIN, "what a core's port, the memory that cores share, or the feed, takes longer than DRAM"),
    "reduction_dram_us": Term("reduction", "partial sums through DRAM"),
    "reduction_noc_us": Term("reduction", "partial sums over the network"),
    "reduction_add_us": Term("reduction", "the additions of partial sums"),
}
"""Every field of `Times`."""

_END_OF_MAIN = 1 + max(place for place, name in enumerate(Times._fields) if TERMS[name].phase == MAIN)
BREAKDOWN = (*Times._fields[:_END_OF_MAIN], "hidden_us", *Times._fields[_END_OF_MAIN:])
"""The terms as `GEMMResult.breakdown` lists them; `hidden_us`, below 0, is what overlaps in the main loop."""

BOUNDS = {
    "compute": "the matrix units", "vector": "the vector units, which dequantize the weights",
    "dram": "DRAM bandwidth", "shared": "the memory that cores share", "noc": "the cores' network ports",
    "feed": "the paths from SRAM into the matrix units",
    "reduction": "the reduction over cores that split K", "launch": "the fixed launch overhead",
    "sync": "waking the cores and waiting for them", "pack": "the packing of operands",
}  # fmt: skip
"""What can limit a GEMM, in the order of the codes in records, and in words that follow "bound by".

Every phase but the main loop is one of them, by its name.
"""
