"""`AttentionResult`: what the attention of a layer takes, and why."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from gemm_eval.frozen import FrozenDict
from gemm_eval.mapping import AttentionMapping
from gemm_eval.units import tflop_per_s, time_text
from gemm_eval.workload import AttentionProblem

_SHOWN_FROM_US = 0.005


@dataclass(frozen=True, slots=True)
class AttentionResult:
    """The time of attention on an arch, term by term.

    Attributes:
        problem: sizes and types.
        arch_name: name of the arch.
        latency_us: time of the call, in microseconds.
        breakdown: microseconds by term, in the order they run; they add up to `latency_us`. On multi-core chips they
            are the times of the parts, and what of them overlaps is below 0, `hidden_us`.
        term_meanings: what the time of each term goes to.
        bound: what limits: ``matrix`` (both products), ``exp`` (the exponentials), ``dram`` or ``launch`` (fixed
            times), the largest of these, where it is at least half of the latency; else ``latency`` (CTAs that wait,
            or too few of them). Fused on multi-core chips: ``matrix``, ``vector``, ``dram``, ``shared``, ``noc``,
            ``feed``, ``reduction``, ``launch`` or ``sync``, as in `GEMMResult`.
        kernel: family of kernels, the mapping of a multi-core chip, or ``unfused``.
        is_fused: scores stay on the chip; else two batched GEMMs with a softmax between them, through DRAM.
        has_positions: rotary positions and the write of new keys and values to the cache are in it.
        roofs: microseconds that the products, the exponentials and the compulsory DRAM bytes take at least.
        source: ``calibrated`` where coefficients were fitted on this very chip, else ``analytic``.
        origin: where they come from, in words.
        mapping: fused on multi-core chips: which core computes what, in which tiles; else None.
        dram_bytes: fused on multi-core chips: bytes that the chip moves; else None.
    """

    problem: AttentionProblem
    arch_name: str
    latency_us: float
    breakdown: FrozenDict[str, float]
    term_meanings: FrozenDict[str, str]
    bound: str
    kernel: str
    is_fused: bool
    has_positions: bool
    roofs: FrozenDict[str, float]
    source: str
    origin: str
    mapping: AttentionMapping | None = None
    dram_bytes: int | None = None

    def __repr__(self) -> str:
        return (
            f"<AttentionResult {self.problem} on {self.arch_name}: {self.latency_us:.4g} us, bound {self.bound}, "
            f"{self.source}>"
        )

    @property
    def flop(self) -> int:
        """Operations of both products, a multiply-accumulate being two, without what masks leave out."""
        return self.problem.flop

    @property
    def tflop_per_s(self) -> float:
        """Achieved rate, in 1e12 FLOP/s."""
        return tflop_per_s(self.flop, self.latency_us)

    @property
    def gb_per_s(self) -> float:
        """Compulsory bytes over the latency, in 1e9 bytes/s."""
        return self.problem.num_bytes / self.latency_us / 1e3

    def explain(self) -> str:
        """Return a short text: how long, what bounds it, and where the time goes."""
        times = [
            f"  {name.removesuffix('_us'):8} {time_text(us):>9}  {self.term_meanings.get(name, '')}"
            for name, us in self.breakdown.items()
            if abs(us) >= _SHOWN_FROM_US
        ]
        at_least = ", ".join(f"{name} {time_text(us)}" for name, us in self.roofs.items())
        return "\n".join(
            [
                f"{self.problem} on {self.arch_name}: {time_text(self.latency_us)}, {self.tflop_per_s:,.1f} TFLOP/s, "
                f"{self.gb_per_s:,.0f} GB/s, bound by {self.bound}.",
                f"Kernel: {self.kernel}; coefficients {self.origin}.",
                *times,
                f"At least: {at_least}.",
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, ready for JSON."""
        data: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        data["problem"] = {item.name: getattr(self.problem, item.name) for item in fields(self.problem)}
        for name in ("breakdown", "term_meanings", "roofs"):
            data[name] = dict(data[name])
        data["mapping"] = None if self.mapping is None else self.mapping.to_dict()
        return data | {"flop": self.flop, "tflop_per_s": self.tflop_per_s, "gb_per_s": self.gb_per_s}
