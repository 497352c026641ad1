"""Predictions of a module over ranges of sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemm_eval.torch.prediction import ModulePrediction
from gemm_eval.torch.text import aligned, us_text

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SizeTable"]


@dataclass(frozen=True, slots=True)
class SizeTable:
    """A prediction for each combination of sizes.

    Attributes:
        names: of the sizes.
        rows: a value of each, and the prediction.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[tuple[int, ...], ModulePrediction], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], ModulePrediction]]:
        return iter(self.rows)

    def __str__(self) -> str:
        head = (*self.names, "us", "TFLOP/s", "bound", "not priced")
        lines = [
            (
                *map(str, point), us_text(found.latency_us), f"{found.flop / max(found.latency_us, 1e-9) / 1e6:,.1f}",
                found.bound, str(len(found.unpriced) or ""),
            )
            for point, found in self.rows
        ]  # fmt: skip
        return "\n".join(aligned([head, *lines], right=set(range(len(self.names) + 2))))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a row for each combination as plain values: sizes, time, interval, FLOP, bytes, bound."""
        return [
            dict(zip(self.names, point, strict=True))
            | {
                "latency_us": found.latency_us, "low_us": found.low_us, "high_us": found.high_us, "flop": found.flop,
                "num_bytes": found.num_bytes, "bound": found.bound, "num_unpriced": len(found.unpriced),
            }
            for point, found in self.rows
        ]  # fmt: skip

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with the rows of `to_dicts`."""
        from gemm_eval.extras import needs_extra

        with needs_extra("a DataFrame", "sweep"):
            import pandas as pd
        return pd.DataFrame(self.to_dicts())
