"""Predictions of a module on an arch: a tree by module path, and its operations in the order they run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_eval.arch import GpuSpec, data_root, read_yaml
from gemm_eval.evaluate import GEMMEvaluator, Lever, sum_interval
from gemm_eval.torch.graph import UNPRICED, Work

if TYPE_CHECKING:
    import os

_UNKNOWN_FRAC = 0.2
"""Width of the interval of an operation whose errors are not known, such as a convolution, of its time: assumed."""


def interval_path() -> Path:
    """Return where the factors of intervals of modules lie, as `tools.examine_modules --fit-intervals` writes them."""
    return data_root() / "calibration" / "modules.yaml"


@cache
def _factors(path: Path) -> dict[str, float]:
    return {name: float(factor) for name, factor in read_yaml(path).items()} if path.is_file() else {}


@dataclass(frozen=True, slots=True)
class PredictedOperation:
    """A kernel, or a few that a library launches for one operation.

    Attributes:
        path: of the module that runs it; empty: the outermost.
        name: of the operation, as torch has it, or of all that are fused: ``"aten.silu + aten.mul"``.
        phase: ``"forward"``, ``"backward"`` or ``"optimizer"``.
        kind: ``"gemm"``, ``"convolution"``, ``"attention"``, ``"memory"`` or ``"unpriced"``.
        low_us, high_us: the interval that holds 80% of measured times of such work; None: errors are not known.
        source: where the time comes from: ``calibrated``, ``corrected``, ``analytic``, or ``none``.
        detail: sizes and kernel, or why it has no price.
        flop: operations on matrices, without what masks leave out.
        unmasked_flop: the same as torch's `FlopCounterMode` counts them, which knows no masks.
        num_bytes: of operands and results, each once; of a fused kernel what it reads and writes.
        start_us: when it begins, kernels running one after the other.
    """

    path: str
    name: str
    phase: str
    kind: str
    latency_us: float
    low_us: float | None
    high_us: float | None
    bound: str
    source: str
    detail: str
    flop: int
    unmasked_flop: int
    num_bytes: int
    start_us: float
    _work: Work = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {item.name: getattr(self, item.name) for item in fields(self) if not item.name.startswith("_")}


@dataclass(frozen=True, slots=True)
class ModulePrediction:
    """A module, its own operations, and the modules in it.

    Attributes:
        path: from the outermost module; empty: that one.
        module_class: name of its class; empty: it has none (operations around modules).
        own_operations: in the order they run, without those of inner modules.
        children: modules in it that run something, in the order of definition.
        total_us: time of the outermost module, which shares are of.
    """

    path: str
    module_class: str
    arch_name: str
    fusion: str
    own_operations: tuple[PredictedOperation, ...] = field(repr=False)
    children: tuple[ModulePrediction, ...] = field(repr=False)
    total_us: float
    _evaluator: GEMMEvaluator = field(repr=False, compare=False)
    _attention_library: str | None = field(repr=False, compare=False)

    def __repr__(self) -> str:
        where = f" {self.path}" if self.path else ""
        return (
            f"<ModulePrediction {self.module_class}{where} on {self.arch_name}: {self.latency_us:,.4g} us, "
            f"{len(self.operations)} operations>"
        )

    def __str__(self) -> str:
        return self.table()

    def __getitem__(self, path: str) -> ModulePrediction:
        """Return a module in this one by its path, as torch names it: ``"layers.0.mlp"``."""
        full = ".".join(filter(None, (self.path, path)))
        node = next((node for node in self.walk() if node.path == full), None)
        if node is None:
            raise KeyError(path)
        return node

    def walk(self) -> Iterator[ModulePrediction]:
        """Yield this module and all in it, outer ones first."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def operations(self) -> tuple[PredictedOperation, ...]:
        """All operations of this module and those in it, in the order they run."""
        result = [operation for node in self.walk() for operation in node.own_operations]
        return tuple(sorted(result, key=lambda operation: operation.start_us))

    @property
    def latency_us(self) -> float:
        """Time of all kernels, one after the other."""
        return sum(operation.latency_us for node in self.walk() for operation in node.own_operations)

    @property
    def low_us(self) -> float:
        """Lower end of the interval of `latency_us` that holds 80% of measured times."""
        return self._interval_us[0]

    @property
    def high_us(self) -> float:
        """Upper end, likewise."""
        return self._interval_us[1]

    @property
    def _interval_us(self) -> tuple[float, float]:
        """The interval of the sum; operations with the same sizes err the same way.

        On GPUs it is wider than the parts tell, by the factor that 80% of drawn modules need: kernels that run may be
        others than those that are priced.
        """
        totals: dict[tuple[str, str], list[float]] = {}
        for each in self.operations:
            total = totals.setdefault((each.name, each.detail), [0.0, 0.0, 0.0])
            us, off_us = each.latency_us, each.latency_us * _UNKNOWN_FRAC
            ends = (
                us - off_us if each.low_us is None else each.low_us,
                us + off_us if each.high_us is None else each.high_us,
            )
            for place, end_us in enumerate((us, *ends)):
                total[place] += end_us
        low_us, high_us = sum_interval((us, low_us, high_us) for us, low_us, high_us in totals.values())
        is_gpu = isinstance(self._evaluator.arch, GpuSpec)
        factors, us = _factors(interval_path()) if is_gpu else {}, self.latency_us
        has_gradients = any(each.phase == "backward" for each in self.operations)
        factor = factors.get(f"{self.fusion}-backward" if has_gradients else self.fusion, factors.get(self.fusion, 1.0))
        return max(0.0, us - (us - low_us) * factor), us + (high_us - us) * factor

    @property
    def share_frac(self) -> float:
        """Part of the time of the outermost module."""
        return self.latency_us / self.total_us if self.total_us else 0.0

    @property
    def flop(self) -> int:
        """Operations on matrices, without what masks leave out; a multiply-accumulate is two."""
        return sum(operation.flop for operation in self.operations)

    @property
    def unmasked_flop(self) -> int:
        """The same as torch's `FlopCounterMode` counts them."""
        return sum(operation.unmasked_flop for operation in self.operations)

    @property
    def num_bytes(self) -> int:
        """Bytes that operations read and write, each operand once."""
        return sum(operation.num_bytes for operation in self.operations)

    @property
    def us_by_kind(self) -> dict[str, float]:
        """Time by kind of operation."""
        return _us_by(self.operations, "kind")

    @property
    def us_by_bound(self) -> dict[str, float]:
        """Time by what limits it."""
        return _us_by(self.operations, "bound")

    @property
    def bound(self) -> str:
        """The bound of most of the time."""
        return next(iter(self.us_by_bound), "")

    @property
    def unpriced(self) -> tuple[PredictedOperation, ...]:
        """Operations that no model knows: they count as no time."""
        return tuple(operation for operation in self.operations if operation.bound == UNPRICED)

    def what_would_help(self) -> tuple[Lever, ...]:
        """Evaluate everything on changed archs, one change at a time; return them, the most helpful first.

        What timings showed beyond the model is not known of changed archs: gains are those of the model alone.
        """
        from gemm_eval.torch.price import find_levers

        works = [operation._work for operation in self.operations]
        return find_levers(self._evaluator, self._attention_library, works)

    def table(self, *, depth: int | None = None, fold: bool = True) -> str:
        """Return a table of modules as text, down to a depth (None: all).

        With `fold` modules of one class whose paths differ by a number alone (``layers.0``, ``layers.1``) share a row.
        """
        from gemm_eval.torch.render import module_table

        return module_table(self, depth=depth, fold=fold)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: the tree."""
        names = (
            "path", "module_class", "arch_name", "fusion", "latency_us", "low_us", "high_us", "share_frac", "bound",
            "flop", "num_bytes",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {
            "num_unpriced": len(self.unpriced),
            "operations": [operation.to_dict() for operation in self.own_operations],
            "children": [child.to_dict() for child in self.children],
        }

    def to_json(self) -> str:
        """Return the tree as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def to_html(self) -> str:
        """Return a page: where the time goes, by module and by kernel, and what would help."""
        from gemm_eval.torch.render import prediction_page

        return prediction_page(self).to_html()

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page, whole or not at all.

        Raises:
            GemmEvalError: it cannot be written.
        """
        from gemm_eval.torch.render import prediction_page

        prediction_page(self).write(path)

    def chrome_trace(self) -> str:
        """Return the timeline as JSON that chrome://tracing and ui.perfetto.dev show: modules above their kernels."""
        from gemm_eval.torch.render import chrome_trace

        return chrome_trace(self)


def _us_by(operations: Sequence[PredictedOperation], name: str) -> dict[str, float]:
    result: Counter[str] = Counter()
    for operation in operations:
        result[getattr(operation, name)] += operation.latency_us  # type: ignore[assignment]
    return dict(result.most_common())


def paths_around(path: str) -> list[str]:
    """Return a path and those of the modules around it, the outermost of all left out, outer ones first."""
    return list(accumulate(path.split("."), "{}.{}".format)) if path else []


def build_tree(
    operations: Sequence[PredictedOperation], modules: dict[str, str], evaluator: GEMMEvaluator, fusion: str,
    attention_library: str | None,
) -> ModulePrediction:  # fmt: skip
    """Return the tree of operations by module, from the class of each module by path, outer ones first."""
    own: dict[str, list[PredictedOperation]] = {}
    for operation in operations:
        own.setdefault(operation.path, []).append(operation)
    order = {path: at for at, path in enumerate(modules)}
    inner: dict[str, list[str]] = {"": []}
    for path in dict.fromkeys(chain.from_iterable(map(paths_around, own))):
        inner[path] = []
        inner[path.rpartition(".")[0]].append(path)
    total_us = sum(operation.latency_us for operation in operations)

    def node(path: str) -> ModulePrediction:
        children = sorted(inner[path], key=lambda one: order.get(one, len(order)))
        return ModulePrediction(
            path, modules.get(path, ""), evaluator.arch.name, fusion, tuple(own.get(path, ())),
            tuple(map(node, children)), total_us, evaluator, attention_library,
        )  # fmt: skip

    return node("")
