"""Predicted beside measured: `Comparison`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemm_eval.torch.prediction import ModulePrediction, PredictedOperation
from gemm_eval.torch.text import aligned, folded_path, us_text

__all__ = ["Comparison", "MeasuredOperation"]

_MAX_ROWS = 40


@dataclass(frozen=True, slots=True)
class MeasuredOperation:
    """An operation of torch, as predicted and as it ran.

    Attributes:
        operations: what is predicted of it; empty: it is taken for free (a view, an empty tensor).
        measured_us: median time of its kernels.
        kernels: their names.
    """

    operations: tuple[PredictedOperation, ...]
    measured_us: float
    kernels: tuple[str, ...]

    @property
    def predicted_us(self) -> float:
        """Sum of what is predicted."""
        return sum(operation.latency_us for operation in self.operations)

    @property
    def path(self) -> str:
        """Of the module that ran it."""
        return self.operations[0].path if self.operations else ""

    @property
    def name(self) -> str:
        """Of the operation."""
        return self.operations[0].name if self.operations else "(free)"

    @property
    def detail(self) -> str:
        """Its sizes."""
        return self.operations[0].detail if self.operations else ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A module on a GPU, predicted and measured, operation by operation.

    Attributes:
        prediction: of all.
        operations: in the order they ran.
        outside_us: time of kernels that belong to no operation: copies between host and device.
        graph_us: time of a replay of everything as a CUDA graph, of the operations that run in eager mode: modules were
            told that they are not captured; None: not asked for, or the module cannot be captured.
        device_name: where it was measured.
    """

    prediction: ModulePrediction
    operations: tuple[MeasuredOperation, ...]
    outside_us: float
    graph_us: float | None
    device_name: str

    @property
    def predicted_us(self) -> float:
        """Of all operations."""
        return self.prediction.latency_us

    @property
    def measured_us(self) -> float:
        """Sum of the times of all kernels, without gaps between them."""
        return sum(one.measured_us for one in self.operations) + self.outside_us

    @property
    def ratio(self) -> float:
        """Predicted over measured: in the CUDA graph, where that was timed, else the sum of kernels."""
        return self.predicted_us / (self.measured_us if self.graph_us is None else self.graph_us)

    def __str__(self) -> str:
        graph = "" if self.graph_us is None else f", {us_text(self.graph_us)} us in a CUDA graph"
        head = (
            f"{self.prediction.module_class} on {self.device_name}: predicted {us_text(self.predicted_us)} us "
            f"({self.prediction.arch_name}), measured {us_text(self.measured_us)} us of kernels{graph}; "
            f"predicted/measured {self.ratio:.3f}"
        )
        rows = [("module", "operation", "runs", "predicted us", "measured us", "ratio", "sizes", "kernel")]
        groups = self._groups()
        for (path, name, detail), found in groups[:_MAX_ROWS]:
            predicted, measured = sum(o.predicted_us for o in found), sum(o.measured_us for o in found)
            ratio = f"{predicted / measured:.2f}" if measured else ""
            kernel = found[0].kernels[0][:40] if found[0].kernels else ""
            rows.append((path if len(found) > 1 else found[0].path, name, str(len(found)), us_text(predicted),
                         us_text(measured), ratio, detail, kernel))  # fmt: skip
        lines = [head, *aligned(rows, right={2, 3, 4, 5})]
        if len(groups) > _MAX_ROWS:
            rest = [one for _, found in groups[_MAX_ROWS:] for one in found]
            lines.append(
                f"{len(groups) - _MAX_ROWS} more kinds: predicted {us_text(sum(o.predicted_us for o in rest))} us, "
                f"measured {us_text(sum(o.measured_us for o in rest))} us"
            )
        if self.outside_us:
            lines.append(f"kernels of no operation: {us_text(self.outside_us)} us")
        return "\n".join(lines)

    def _groups(self) -> list[tuple[tuple[str, str, str], list[MeasuredOperation]]]:
        """Operations that are alike, those that were measured longest first."""
        groups: dict[tuple[str, str, str], list[MeasuredOperation]] = {}
        for one in self.operations:
            groups.setdefault((folded_path(one.path), one.name, one.detail), []).append(one)
        return sorted(groups.items(), key=lambda item: -sum(one.measured_us for one in item[1]))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a row for each operation as plain values."""
        return [
            {"path": one.path, "name": one.name, "detail": one.detail, "predicted_us": one.predicted_us,
             "measured_us": one.measured_us, "kernels": list(one.kernels)}
            for one in self.operations
        ]  # fmt: skip
