"""`MoeLayerResult`: what a layer of experts takes, over the draws of its routing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gemm_eval.evaluate import GEMMResult
from gemm_eval.extras import needs_extra
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu import say_tiles
from gemm_eval.moe.layer import MoeLayer
from gemm_eval.units import tflop_per_s, time_text

_SHOWN_FROM_US = 0.005
_BITS_OF_WIDE = 16


class MoeDraw(NamedTuple):
    """One draw of the routing; with ``rank="mean"`` all numbers but `imbalance` are means over the ranks.

    Attributes:
        latency_us: time of the layer.
        breakdown: of it, by term.
        rows: assignments (token, expert) of the rank.
        num_active: experts of the rank that have tokens.
        max_rows: tokens of its busiest expert.
        imbalance: tokens of the most loaded rank over the mean of all ranks.
    """

    latency_us: float
    breakdown: FrozenDict[str, float]
    rows: float
    num_active: float
    max_rows: float
    imbalance: float


@dataclass(frozen=True, slots=True)
class MoeLayerResult:
    """The time of a layer of experts on one rank, and why: means over draws, where nothing else is said.

    Communication between ranks is not in it, nor the router's GEMM.

    Attributes:
        layer: sizes, ranks and routing.
        arch_name: name of the arch.
        library: whose kernels run the GEMMs, on a GPU; None on a multi-core chip, or where a rank has no token.
        latency_us: time of the layer, in microseconds.
        std_us, min_us, max_us: spread over draws: standard deviation (of these draws), least and most.
        breakdown: microseconds by term, in the order they run; they add up to `latency_us`.
        bound: what limits: of the largest term, if that is a GEMM, what limits that (see `GEMMResult`), else its name.
        draws: each draw.
        gemm1, gemm2: the two grouped GEMMs in the draw of median latency; None where the rank has no token there.
        imbalance: tokens of the most loaded rank over the mean of all ranks; 1 where there is one.
        expert_imbalance: tokens of the rank's busiest expert over the mean of its experts; 0 without a token.
        rows: assignments (token, expert) of the rank.
        num_active: experts of the rank that have tokens.
        flop: operations of the rank's GEMMs, shared experts included, a multiply-accumulate being two.
        dram_bytes: DRAM traffic of these GEMMs.
    """

    layer: MoeLayer
    arch_name: str
    library: str | None
    latency_us: float
    std_us: float
    min_us: float
    max_us: float
    breakdown: FrozenDict[str, float]
    bound: str
    draws: tuple[MoeDraw, ...]
    gemm1: GEMMResult | None
    gemm2: GEMMResult | None
    imbalance: float
    expert_imbalance: float
    rows: float
    num_active: float
    flop: float
    dram_bytes: float

    def __repr__(self) -> str:
        return f"<MoeLayerResult {self.layer} on {self.arch_name}: {self.latency_us:.4g} us, bound {self.bound}>"

    @property
    def tflop_per_s(self) -> float:
        """Achieved rate of the GEMMs' operations over the time of the whole layer, in 1e12 FLOP/s."""
        return tflop_per_s(self.flop, self.latency_us)

    @property
    def gemm_us(self) -> float:
        """Time of the two grouped GEMMs."""
        return self.breakdown["gemm1_us"] + self.breakdown["gemm2_us"]

    def explain(self) -> str:
        """Return a short text: how long, on how many rows of how many experts, and where the time goes."""
        spread = ""
        if len(self.draws) > 1:
            spread = f" (mean of {len(self.draws)} draws, {time_text(self.min_us)} to {time_text(self.max_us)})"
        whose = {"most_loaded": "the most loaded rank", "mean": "the mean rank"}.get(
            str(self.layer.rank), f"rank {self.layer.rank}"
        )
        of_ranks = f"; the most loaded of {self.layer.ep} ranks has {self.imbalance:.2f}x the mean" * (
            self.layer.ep > 1
        )
        shown = {name: us for name, us in self.breakdown.items() if us >= _SHOWN_FROM_US}
        times = ", ".join(f"{_words(name)} {time_text(us)}" for name, us in shown.items())
        lines = [
            f"{self.layer} on {self.arch_name}: {time_text(self.latency_us)}{spread}, {self.tflop_per_s:,.1f} TFLOP/s, "
            f"bound by {_words(self.bound)}.",
            f"Load of {whose}: {self.rows:,.1f} rows on {self.num_active:,.1f} of {self.layer.num_local_experts} "
            f"experts, the busiest with {self.expert_imbalance:.2f}x the mean{of_ranks}.",
            f"Time: {times}.",
            *(
                f"GEMM {place}: {result.problem}, {time_text(result.latency_us)}, bound by "
                f"{result.backend.say_bound(result.bound)}."
                for place, result in ((1, self.gemm1), (2, self.gemm2))
                if result is not None
            ),
            *self._say_kernels(),
        ]
        return "\n".join(lines)

    def _say_kernels(self) -> list[str]:
        """Say whose kernels run, by which release's rule, and what narrow weights are for where they save no time."""
        if self.library is None or self.gemm1 is None:
            return []
        types = self.gemm1.problem.types
        tiles = say_tiles(self.library.partition("/")[0], types)
        lines = [f"Kernels: {self.library}{'; ' if tiles else ''}{tiles}."]
        times = _BITS_OF_WIDE / types.b.dtype.bits
        if types.is_weight_quantized and times * self.gemm1.dram_us < self.gemm1.latency_us:
            lines.append(
                f"Weights of {types.b.dtype} save memory here, not time: those of 16 bits would take {times:.2g} times "
                "as much, and may be faster where they fit (dtype='bf16')."
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, ready for JSON."""
        plain = {
            name: getattr(self, name)
            for name in (
                *("arch_name", "library", "latency_us", "std_us", "min_us", "max_us", "bound", "imbalance"),
                *("expert_imbalance", "rows", "num_active", "flop", "dram_bytes", "tflop_per_s"),
            )
        }
        return {
            "layer": self.layer.to_dict(),
            **plain,
            "breakdown": dict(self.breakdown),
            "draws": [draw._asdict() | {"breakdown": dict(draw.breakdown)} for draw in self.draws],
            "gemm1": None if self.gemm1 is None else self.gemm1.to_dict(),
            "gemm2": None if self.gemm2 is None else self.gemm2.to_dict(),
        }

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each draw.

        Raises:
            GemmEvalError: pandas is not installed.
        """
        with needs_extra("to_pandas", "sweep"):
            import pandas as pd
        rows = [{name: item for name, item in draw._asdict().items() if name != "breakdown"} for draw in self.draws]
        return pd.DataFrame([row | dict(draw.breakdown) for row, draw in zip(rows, self.draws, strict=True)])


_WORDS = {
    "gemm1": "GEMM 1", "gemm2": "GEMM 2", "finalize": "the sum over experts", "shared": "shared experts",
    "dram": "DRAM bandwidth", "l2": "L2 bandwidth",
}  # fmt: skip


def _words(term: str) -> str:
    name = term.removesuffix("_us")
    return _WORDS.get(name, name)
