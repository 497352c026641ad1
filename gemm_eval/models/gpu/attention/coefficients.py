"""The coefficients of the attention kernels: what they do that no spec sheet says. MODEL.md, "Attention"."""

from __future__ import annotations

from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient, Neutral

__all__ = [
    "CONTEXT",
    "CONTEXT_MMA",
    "CONTEXT_PLAIN",
    "EXPS_PER_CYCLE",
    "HEAD_DIMS",
    "PACKED_HEADS",
    "PACKED_PLAIN",
    "SINGLE_HEADS",
    "coefficient",
]

_SOURCE = "round, within what fits of TensorRT-LLM's timings gave (arch/calibration, attention.yaml)"
EXPS_PER_CYCLE = 16
"""Of an SM: NVIDIA, CUDA C++ Programming Guide, throughput of special functions."""

HEAD_DIMS = (64, 128, 192, 256)
"""For which kernels on mma.sync are compiled; others are padded to the next."""


def coefficient(
    name: str, unit: str, low: float, high: float, default: float, neutral: Neutral, meaning: str
) -> Coefficient:
    """Return a coefficient of attention, whose default comes from its fits."""
    return Coefficient(name, unit, low, high, default, neutral, meaning, _SOURCE)


_MEMORY = (
    coefficient("fixed_us", "us", 1.0, 30.0, 8.0, FREE, "start and end of the operation's kernels"),
    coefficient("l2_frac", "1", 0.05, 1.0, 0.8, NO_LIMIT, "share of the L2 bandwidth that its bytes reach"),
    coefficient("dram_frac", "1", 0.4, 1.0, 0.92, SPEC, "share of the DRAM bandwidth that they reach where they miss"),
    coefficient("hold_frac", "1", 0.1, 2.0, 0.3, FREE, "of L2: in which bytes of the call before are still there"),
)

_CONTEXT_SHARED = (
    *_MEMORY,
    coefficient("cta_cycles", "cycles", 0.0, 2e4, 4000.0, FREE, "a tile of queries besides its tiles of keys"),
    coefficient(
        "step_cycles", "cycles", 0.0, 600.0, 100.0, FREE, "a tile of keys besides its products and exponentials"
    ),
    coefficient(
        "exp_frac", "1", 0.05, 8.0, 1.0, FREE, "time of the exponentials over that of the units' rate, 16 a cycle"
    ),
    coefficient("tail_frac", "1", 0.0, 3.0, 0.7, FREE, "of the longest CTA, which the others wait for at the end"),
    coefficient(
        "narrow_frac", "1", 0.9, 3.0, 1.0, SPEC, "bytes of the kernel that fills a narrow cache, over their number"
    ),
)
CONTEXT = (
    *_CONTEXT_SHARED,
    coefficient("matrix16_frac", "1", 0.05, 1.0, 0.7, SPEC, "share of the rate of 16-bit products"),
    coefficient("matrix8_frac", "1", 0.05, 1.0, 0.5, SPEC, "share of the rate of 8-bit products"),
    coefficient(
        "window8_cycles", "cycles", 0.0, 2e4, 0.0, FREE, "a tile of queries more where 8 bits go with a window"
    ),
)
CONTEXT_MMA = (
    *_CONTEXT_SHARED,
    *(
        coefficient(
            f"matrix{bits}_frac_{size}", "1", 0.02, 1.0, default, SPEC, f"likewise, {bits} bits, heads of {size}"
        )
        for bits, defaults in ((16, (0.5, 0.46, 0.3, 0.5)), (8, (0.13, 0.45, 0.26, 0.115)))
        for size, default in zip(HEAD_DIMS, defaults, strict=True)
    ),
)
CONTEXT_PLAIN = (
    *(item for item in _CONTEXT_SHARED if item.name != "narrow_frac"),
    *(
        coefficient(f"matrix16_frac_{size}", "1", 0.02, 1.0, 0.6, SPEC, f"share of the rate, heads of {size}")
        for size in HEAD_DIMS
    ),
)
"""Of kernels for 16 bits, which do nothing but attention."""

PACKED_HEADS = (
    *_MEMORY,
    coefficient(
        "pre_l2_frac", "1", 0.02, 1.0, 0.4, NO_LIMIT, "share of the L2 bandwidth of the kernel that writes the cache"
    ),
    coefficient("cta_us", "us", 0.0, 20.0, 2.0, FREE, "a CTA besides its keys"),
    coefficient("head_us", "us", 0.0, 10.0, 0.3, FREE, "likewise, for 1,024 elements of its query heads"),
    coefficient("step_us", "us", 0.0, 20.0, 1.0, FREE, "128 keys of 128 elements, of a CTA"),
    coefficient("rows_frac", "1", 0.0, 8.0, 0.4, FREE, "of that, for each further tile of query heads"),
    coefficient("ctas_per_sm", "1", 0.2, 8.0, 1.0, SPEC, "CTAs that an SM works on at once"),
    coefficient("idle_us", "us", 0.0, 20.0, 1.0, FREE, "a CTA whose keys lie before the window"),
    coefficient("sum_us", "us", 0.0, 15.0, 2.0, FREE, "sum of the parts where keys are cut"),
    coefficient("sum64_us", "us", 0.0, 25.0, 2.0, FREE, "likewise, more for 64 parts, in proportion"),
    coefficient("small_us", "us", 0.0, 6.0, 0.0, FREE, "more where heads have less than 128 elements"),
    coefficient("spill_frac", "1", 1.0, 6.0, 1.0, SPEC, "cost of a CTA with 3,072 elements of query heads or more"),
)
PACKED_PLAIN = (
    *(item for item in PACKED_HEADS if item.name not in ("pre_l2_frac", "idle_us")),
    coefficient(
        "late_frac", "1", 0.0, 1.0, 0.15, FREE, "of the bytes' time, that of those who come last, as if a CTA an SM"
    ),
)
"""Of kernels that do nothing but attention, without windows."""

SINGLE_HEADS = (
    *_MEMORY,
    coefficient("cta_us", "us", 0.0, 25.0, 5.5, FREE, "a CTA besides its keys"),
    coefficient("key_ns", "ns", 0.0, 400.0, 42.0, FREE, "a key of 128 elements, of a CTA of 256 threads"),
    coefficient("sm_key_ns", "ns", 0.0, 400.0, 8.0, FREE, "likewise, of an SM that is full"),
    coefficient("sum_us", "us", 0.0, 15.0, 4.0, FREE, "sum of the parts where keys are cut"),
)
