"""The coefficients of the GPU model: what a kernel library does that no spec sheet says.

Each has a unit, a plausible range and a meaning. They belong to a kernel family of a library and carry over to all GPUs
that run it; what belongs to the chip (clocks, bandwidths, latencies, sizes) comes from its `GpuSpec` and is never
fitted. MODEL.md, "Transfer", has the rule.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

_FITTED = "round, within what fits of the H200's timings gave (arch/calibration/h200-sxm)"
_ASSUMED = "assumed: no timing with a known config tells it yet"


class Neutral(NamedTuple):
    """Value of a coefficient where its term is absent: for ablations, and for calibrations that are older than it."""

    value: float  # in the coefficient's unit; it may lie outside the range
    why: str  # what that means
    same_as: str = ""  # the value is that of this coefficient of the family instead

    def of(self, values: Mapping[str, float]) -> float:
        """Return the value beside the other coefficients of the family."""
        return values[self.same_as] if self.same_as else self.value


FREE = Neutral(0.0, "costs nothing")
NO_LIMIT = Neutral(1e9, "limits nothing")
SPEC = Neutral(1.0, "the spec's own value")


class Coefficient(NamedTuple):
    """One coefficient: its name in YAML and in the records of kernels is the same.

    Attributes:
        low, high: its plausible range, in which fits stay.
    """

    name: str  # as kernels read it
    unit: str  # ``1`` for a share
    low: float
    high: float
    default: float  # before any fit
    neutral: Neutral  # its value where its term is absent
    meaning: str  # what kernels do
    source: str = _FITTED  # where the default comes from


COEFFICIENTS: tuple[Coefficient, ...] = (
    Coefficient(
        "kernel_us", "us", 0.2, 8.0, 1.2, FREE, "barriers, descriptors, first and last instructions of a kernel",
    ),
    Coefficient(
        "ramp_us", "us", 0.0, 1.5, 0.2, FREE, "queue of the first loads when all SMs start at once; fewer SMs, less",
    ),
    Coefficient(
        "matrix_frac", "1", 0.5, 1.0, 1.0, SPEC, "share of the tensor cores' rate that a full main loop reaches",
    ),
    Coefficient("step_cycles", "cycles", 0.0, 800.0, 100.0, FREE, "what a lone warpgroup loses at every k-step"),
    Coefficient(
        "coop_step_cycles", "cycles", 0.0, 800.0, 150.0, FREE, "what cooperating warpgroups lose at every k-step",
    ),
    Coefficient("tile_cycles", "cycles", 0.0, 6000.0, 300.0, FREE, "start and end of a tile besides its stores"),
    Coefficient("pingpong_cycles", "cycles", 0.0, 4000.0, 400.0, FREE, "hand-over between two warpgroups' tiles"),
    Coefficient(
        "coop_tile_cycles", "cycles", 0.0, 6000.0, 300.0, FREE, "start and end of a tile of cooperating warpgroups",
    ),
    Coefficient(
        "epilogue_bytes_per_cycle", "B/cycle", 4.0, 256.0, 80.0, NO_LIMIT, "C of one SM, from accumulators to L2",
    ),
    Coefficient("sm_l2_frac", "1", 0.4, 1.5, 1.0, NO_LIMIT, "share of 64 B a cycle that an SM takes in from L2"),
    Coefficient(
        "cluster_loss", "1", 0.0, 0.15, 0.03, FREE,
        "DRAM rate lost at each doubling of a cluster, whose CTAs wait on each other",
    ),
    Coefficient("dram_frac", "1", 0.75, 1.1, 1.0, SPEC, "share of the achievable DRAM bandwidth in a main loop"),
    Coefficient("l2_frac", "1", 0.5, 1.45, 1.2, NO_LIMIT, "share of the L2 bandwidth of hits, multicast included"),
    Coefficient("l2_first", "1", 0.0, 4.0, 0.0, FREE, "L2 traffic that the first read of a byte adds to its own"),
    Coefficient("l2_hold_frac", "1", 0.05, 1.0, 0.5, SPEC, "share of L2 in which a buffer outlives one call"),
    Coefficient("line_waste", "1", 0.0, 1.0, 0.25, FREE, "more L2 traffic where rows do not start on 128 bytes"),
    Coefficient(
        "outside_rows_per_cycle", "1/cycle", 0.1, 50.0, 4.0, NO_LIMIT,
        "rows outside the matrix that TMA fills, whole chip",
    ),
    Coefficient("store_exposed_frac", "1", 0.0, 1.5, 0.6, FREE, "part of the time of storing C that nothing hides"),
    Coefficient("reduce_us", "us", 0.0, 6.0, 2.0, FREE, "fixed cost of adding the parts of a split K"),
    Coefficient("reduce_frac", "1", 0.05, 1.5, 0.5, NO_LIMIT, "share of the L2 bandwidth in which parts are added"),
    Coefficient("fixup_us", "us", 0.0, 4.0, 0.8, FREE, "fixed cost of adding the cut tiles of stream-K", _ASSUMED),
    Coefficient(
        "dequant", "1", 0.3, 12.0, 1.5, FREE, "instructions for a weight over the count of the plain sequence",
        _ASSUMED,
    ),
    Coefficient(
        "dequant_exposed", "1", 0.0, 1.0, 0.3, FREE,
        "part of the shorter of tensor work and dequantization that shows", _ASSUMED,
    ),
    Coefficient(
        "vector_kernel_us", "us", 0.2, 8.0, 1.2, FREE, "as kernel_us, of kernels without tensor cores", _ASSUMED,
    ),
    Coefficient(
        "vector_step_cycles", "cycles", 0.0, 800.0, 60.0, FREE, "as step_cycles, of kernels without tensor cores",
        _ASSUMED,
    ),
    Coefficient(
        "vector_frac", "1", 0.05, 1.0, 0.7, SPEC,
        "share of the half2 rate that a full main loop without tensor cores reaches", _ASSUMED,
    ),
    Coefficient("vector_dequant", "1", 0.3, 12.0, 1.5, FREE, "as dequant, of kernels without tensor cores", _ASSUMED),
    Coefficient(
        "unaligned_frac", "1", 0.02, 1.0, 0.25, SPEC, "rate of loads of less than 16 bytes over that of full ones",
    ),
    Coefficient(
        "line_conflict", "1", 0.0, 1.0, 0.0, FREE,
        "more time of such loads where all rows lie alike in their lines, so in the same banks",
    ),
    Coefficient(
        "choice_loss", "1", 0.0, 0.12, 0.033, FREE,
        "what a library's own choice of config loses against the best of its kernels",
    ),
)  # fmt: skip
"""Those of generic families, in the order in which they are fitted and written."""

QUANTIZATION: tuple[Coefficient, ...] = (
    Coefficient(
        "quantize_us", "us", 0.3, 10.0, 4.2, FREE, "fixed cost of each pass over A that quantizes it, launch included"
    ),
    Coefficient("quantize_row_ns", "ns", 0.0, 40.0, 0.0, FREE, "what a row of A adds to its quantization"),
    Coefficient(
        "quantize_l2_frac", "1", 0.05, 2.0, 0.6, NO_LIMIT, "share of the L2 bandwidth that quantization moves A at"
    ),
    Coefficient(
        "quantize_dram_frac", "1", 0.2, 1.0, 0.8, NO_LIMIT,
        "share of the published DRAM bandwidth that it moves at what L2 cannot hold",
    ),
    Coefficient(
        "scale_cast_us", "us", 0.0, 4.0, 1.2, FREE, "a kernel of one element that casts the scale of A",
        "arch/measured/h200-sxm/quantization",
    ),
)  # fmt: skip
"""Those of the kernels that quantize A before a GEMM."""

_OF_TRTLLM = "round, within what fits of an A100's timings gave (arch/calibration/a100-sxm-80gb)"

TRTLLM_OWN: tuple[Coefficient, ...] = (
    Coefficient(
        "reduce_part_us", "us", 0.0, 4.0, 1.0, FREE, "what each part of a split K waits for the one before it",
        _OF_TRTLLM,
    ),
    Coefficient(
        "vector_tile_cycles", "cycles", 0.0, 4000.0, 500.0, FREE,
        "more than tile_cycles, of kernels without tensor cores", _OF_TRTLLM,
    ),
)  # fmt: skip
"""Those that only TensorRT-LLM's own families have, besides all of a generic one."""

LONE_OWN: tuple[Coefficient, ...] = (
    Coefficient(
        "lone_frac",
        "1",
        0.0,
        3.0,
        0.3,
        FREE,
        "more work of a CTA alone on its SM, whose few warps wait for their own products",
        "round, within what fits of an H100's timings gave (arch/calibration/h100-sxm)",
    ),
    TRTLLM_OWN[0]._replace(default=0.05),
)
"""Coefficients that cuBLAS's tf32 and fp32 families have besides those of every generic family."""

_OF_LAYERS = "round, within what fits of AIConfigurator's layers gave (arch/calibration, grouped families)"

TRITON_OWN: tuple[Coefficient, ...] = (
    Coefficient(
        "half_line_waste", "1", 0.0, 2.0, 0.6, FREE,
        "more DRAM and L2 traffic where a k-step takes less than 128 bytes of a row", _OF_LAYERS,
    ),
    Coefficient(
        "element_load_cycles", "cycles", 0.0, 30.0, 9.0, FREE,
        "of an SM for 32 elements where K is no multiple of 16, so that they are loaded one by one", _OF_LAYERS,
    ),
    Coefficient(
        "load_wait_cycles", "cycles", 0.0, 4000.0, 700.0, FREE,
        "what a stage takes to come from DRAM, beyond its latency", _OF_LAYERS,
    ),
)  # fmt: skip
"""Those that only Triton's kernels have, besides all of a generic family."""

MOE_LAYER: tuple[Coefficient, ...] = (
    Coefficient(
        "moe_fixed_us", "us", 0.5, 80.0, 12.0, FREE,
        "kernels of a layer beside its GEMMs, launches included: routing, alignment, activation, finalize", _OF_LAYERS,
    ),
    Coefficient("moe_token_ns", "ns", 0.0, 60.0, 1.0, FREE, "what a token adds to routing", _OF_LAYERS),
    Coefficient(
        "moe_token_expert_ps", "ps", 0.0, 400.0, 5.0, FREE, "what a token adds to routing for each expert", _OF_LAYERS,
    ),
    Coefficient("moe_expert_ns", "ns", 0.0, 800.0, 5.0, FREE, "what an expert of the rank adds", _OF_LAYERS),
    Coefficient("moe_active_ns", "ns", 0.0, 800.0, 20.0, FREE, "what an expert that has rows adds", _OF_LAYERS),
    Coefficient("moe_row_ns", "ns", 0.0, 60.0, 0.5, FREE, "what a row of an expert adds to permutation", _OF_LAYERS),
    Coefficient(
        "moe_token_frac", "1", 0.02, 1.0, 0.5, SPEC,
        "share of the L2 bandwidth at which tokens are read and written before the first GEMM", _OF_LAYERS,
    ),
    Coefficient(
        "moe_activation_frac", "1", 0.02, 1.0, 0.8, SPEC, "share of the L2 bandwidth of the activation", _OF_LAYERS,
    ),
    Coefficient(
        "moe_most_row_ns", "ns", 0.0, 60.0, 0.0, FREE,
        "what a row of the most loaded expert adds to the activation, where CTAs of each expert walk its rows",
        _OF_LAYERS,
    ),
    Coefficient(
        "moe_any_row_us", "us", 0.0, 6.0, 0.0, FREE,
        "a CTA of the activation, where every assignment of the layer has one for 128 columns, other ranks' too",
        _OF_LAYERS,
    ),
    Coefficient(
        "moe_finalize_frac", "1", 0.02, 1.0, 0.8, SPEC,
        "share of the L2 bandwidth at which rows are added up to tokens", _OF_LAYERS,
    ),
    Coefficient(
        "moe_dram_frac", "1", 0.2, 1.0, 0.9, SPEC,
        "share of the published DRAM bandwidth of all these where L2 cannot hold what they move", _OF_LAYERS,
    ),
    Coefficient(
        "moe_grouped_router_ns", "ns", 0.0, 120.0, 0.0, FREE,
        "what a token adds to routing where experts are chosen in groups first (DeepSeek-V3)", _OF_LAYERS,
    ),
)  # fmt: skip
"""Those of a mixture-of-experts layer around its two grouped GEMMs, which only families of grouped kernels have."""


def with_ranges(of: Sequence[Coefficient], **ranges: tuple[float, float, float]) -> tuple[Coefficient, ...]:
    """Return coefficients of a family, some with low, high and default of its own."""
    found = []
    for item in of:
        low, high, default = ranges.get(item.name, (item.low, item.high, item.default))
        found.append(item._replace(low=low, high=high, default=default))
    return tuple(found)


def with_defaults(**defaults: float) -> tuple[Coefficient, ...]:
    """Return the coefficients of a generic family, some with defaults of its own."""
    return tuple(item._replace(default=defaults.get(item.name, item.default)) for item in COEFFICIENTS)


def after_quantization(
    of: Sequence[Coefficient], highest: Mapping[str, float], **defaults: float
) -> tuple[Coefficient, ...]:
    """Return the coefficients of a family whose kernels are timed behind the one that quantizes A.

    Args:
        of: those of the family that it is like.
    """
    return tuple(
        item._replace(default=defaults.get(item.name, item.default), high=highest.get(item.name, item.high))
        for item in (*of, *QUANTIZATION)
    )


def check_coefficients(values: Mapping[str, float], known: Sequence[Coefficient]) -> None:
    """Raise `ValueError` where a name is unknown, or a value out of its range; an older calibration may lack some."""
    by_name = {item.name: item for item in known}
    if wrong := sorted(set(values) - set(by_name)):
        raise ValueError(
            f"coefficients must be those of the model; wrong: {', '.join(wrong)}; delete the file and calibrate again"
        )
    for name, value in values.items():
        item = by_name[name]
        if not item.low <= value <= item.high:
            raise ValueError(f"{name} must be in {item.low}..{item.high} {item.unit}, got {value}")


def complete_coefficients(values: Mapping[str, float], known: Sequence[Coefficient]) -> dict[str, float]:
    """Return values of all coefficients, in their order; those that are missing are neutral."""
    return {item.name: values[item.name] if item.name in values else item.neutral.of(values) for item in known}
