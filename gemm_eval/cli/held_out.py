"""What the `validate` commands share whose rows are predicted by fits on other rows: plain values, and cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gemm_eval.validation import Metrics

__all__ = ["HeldOutLine", "error_cells", "plain_lines"]


class HeldOutLine(Protocol):
    """Errors on some rows, by who predicts."""

    @property
    def errors(self) -> Mapping[str, Metrics]:
        """By who predicts."""

    def _asdict(self) -> dict[str, Any]: ...


def plain_lines(lines: Iterable[HeldOutLine]) -> list[dict[str, Any]]:
    """Return lines ready for JSON."""
    return [line._asdict() | {"errors": {name: asdict(found) for name, found in line.errors.items()}} for line in lines]


def error_cells(errors: Mapping[str, Metrics], model: str, others: Sequence[str]) -> Iterator[str]:
    """Yield the number of rows, the MAPE of `others`, and all errors of `model`: MAPE, median, p90, bias, tau."""
    found = errors[model]
    yield f"{found.num:,}"
    yield from (f"{errors[name].mape_frac:.1%}" for name in others)
    yield from (
        f"{found.mape_frac:.1%}",
        f"{found.median_frac:.1%}",
        f"{found.p90_frac:.1%}",
        f"{found.bias_frac:+.1%}",
    )
    yield "-" if found.kendall_tau is None else f"{found.kendall_tau:.3f}"
