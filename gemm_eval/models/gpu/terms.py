"""Parts of the time of a GEMM on a GPU: the terms of `GEMMResult.breakdown`, and what can limit it.

A term is a field of `Times` and a line of `TERMS`; records, breakdowns, bounds and what `explain` says follow.
"""

from typing import NamedTuple


class Times(NamedTuple):
    """The terms of one config, in us, as `TERMS` explains them. A new one comes last, with 0.0 as its default."""

    launch_us: float
    prologue_us: float
    matrix_us: float
    dequant_us: float
    step_wait_us: float
    tile_overhead_us: float
    l2_us: float
    dram_us: float
    outside_us: float
    store_us: float
    reduction_us: float
    power_us: float
    choice_us: float
    quantize_us: float = 0.0
    cast_us: float = 0.0


class Term(NamedTuple):
    """A term."""

    resource: str  # which of `RESOURCES` works meanwhile; empty: none of its own, so that it limits nothing
    meaning: str  # what that time goes to


TERMS: dict[str, Term] = {
    "launch_us": Term("launch", "the launch of a kernel, as a node of a graph"),
    "prologue_us": Term("prologue", "barriers, descriptors and first loads, and the last instructions of a kernel"),
    "matrix_us": Term("sm", "tensor cores, or ALUs in kernels without them"),
    "dequant_us": Term("sm", "dequantization beyond the time of the tensor cores"),
    "step_wait_us": Term("sm", "barriers, load latency and slow copies between k-steps"),
    "tile_overhead_us": Term("sm", "epilogues and other work between tiles"),
    "l2_us": Term("l2", "reads through L2, at its bandwidth"),
    "dram_us": Term("dram", "reads and writes of DRAM, at its bandwidth"),
    "outside_us": Term("fill", "rows outside the matrix that TMA fills"),
    "store_us": Term("store", "stores of C that nothing hides"),
    "reduction_us": Term("reduction", "sums over the parts of K"),
    "power_us": Term("", "main loop at the lower clock that tensor load brings"),
    "choice_us": Term("", "what the library's own choice of a kernel loses"),
    "quantize_us": Term("quantize", "kernels before the GEMM that quantize A"),
    "cast_us": Term("quantize", "the kernel before the GEMM that casts the scale of A"),
}
"""Every field of `Times`."""

SM = "sm"
"""The resource of which not itself limits, but compute, dequantization or waits, whichever is the largest part."""

RESOURCES = ("dram", "l2", SM, "fill", "store", "reduction", "prologue", "launch", "quantize")
"""What terms are the time of; of equal times the first limits."""

BOUNDS = {
    "compute": "the tensor cores",
    "dequant": "the ALUs, which dequantize the weights",
    "latency": "waits between the k-steps and the tiles of a kernel",
    "l2": "L2 bandwidth",
    "dram": "DRAM bandwidth",
    "reduction": "the reduction over CTAs that split K",
    "launch": "the fixed cost of a kernel launch",
    "store": "the stores of C",
    "prologue": "the start of a kernel, up to its first data",
    "fill": "TMA, which fills rows outside the matrix",
    "quantize": "the quantization of A before it",
}
"""What can limit a GEMM, in the order of the codes in records, and in words that follow "bound by"."""
