"""Workloads of a sweep, and the columns of its answers: metrics, which way is better, and constraints."""

from __future__ import annotations

import json
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, MulticoreSpec
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import AttentionResult
from gemm_eval.sweep.fields import Choices, Dependent
from gemm_eval.sweep.space import check_count
from gemm_eval.transformer import (
    AttentionWork,
    LayerGemm,
    ModelConfig,
    load_model,
    model_on,
    model_operations,
    transformer_gemms,
    types_on,
)
from gemm_eval.units import FLOP_PER_MAC, per_s, pj_per_us, tflop_per_s, watt
from gemm_eval.words import check_flag, needs_extra, shown
from gemm_eval.workload import AttentionProblem, GemmProblem, make_problem

if TYPE_CHECKING:
    from gemm_eval.sweep.space import Space


Column = npt.NDArray[np.float64]

SUMS = ("latency_us", "energy_pj", "dram_bytes")
"""The metrics that are sums over what runs."""

METRICS = (
    "latency_us", "tokens_per_s", "energy_pj", "energy_delay_pj_us", "power_w", "dram_bytes",
    "tflop_per_s", "utilization_frac", "tflop_per_s_per_mm2", "tflop_per_s_per_w",
)  # fmt: skip
"""The metrics of each workload; energy, and what follows from it, is nan where the spec has no figures."""

MAXIMIZED = {"tokens_per_s", "tflop_per_s", "utilization_frac", "tflop_per_s_per_mm2", "tflop_per_s_per_w"}
"""Metrics of which more is better."""

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_CONSTRAINT = re.compile(r"([A-Za-z_][\w.]*)\s*(<=|>=|==|!=|<|>)\s*(\S.*)")
_MAX_CHARS = 200  # of a constraint


def metric_names(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """Return the metric columns: those of all workloads together, then of each where there are several."""

    groups = [("", any(load.num_tokens for load in workloads))]
    if len(workloads) > 1:
        groups += [(f"{load.name}_", bool(load.num_tokens)) for load in workloads]
    return tuple(
        f"{prefix}{metric}"
        for prefix, has_tokens in groups
        for metric in METRICS
        if metric != "tokens_per_s" or has_tokens
    )


def is_maximized(name: str, workloads: Sequence[Workload]) -> bool:
    """Say whether more is better: as the name of the metric says, with or without a workload before it."""
    return name in MAXIMIZED or any(
        name.startswith(f"{load.name}_") and name.removeprefix(f"{load.name}_") in MAXIMIZED for load in workloads
    )


def metric_columns(
    workloads: Sequence[Workload],
    totals: Sequence[Mapping[str, Column]],
    *,
    ideal_us: Sequence[Column],
    area_mm2: Column,
) -> dict[str, Column]:
    """Return all metric columns [num_points], given each workload's `SUMS` and time at its peak."""
    together = {key: add_up(total[key] for total in totals) for key in SUMS}
    columns = _metrics(workloads, together, add_up(ideal_us), area_mm2)
    if len(workloads) > 1:
        for load, total, ideal in zip(workloads, totals, ideal_us, strict=True):
            of_one = _metrics([load], total, ideal, area_mm2)
            columns |= {f"{load.name}_{name}": column for name, column in of_one.items()}
    return columns


def _metrics(
    workloads: Sequence[Workload], total: Mapping[str, Column], ideal_us: Column, area_mm2: Column
) -> dict[str, Column]:
    latency_us, energy_pj = total["latency_us"], total["energy_pj"]
    rate = tflop_per_s(float(sum(load.flop for load in workloads)), latency_us)
    power_w = watt(energy_pj, latency_us)
    return {
        **total,
        "tokens_per_s": per_s(sum(load.num_tokens or 0 for load in workloads), latency_us),
        "energy_delay_pj_us": energy_pj * latency_us,
        "power_w": power_w,
        "tflop_per_s": rate,
        "utilization_frac": ideal_us / latency_us,
        "tflop_per_s_per_mm2": rate / area_mm2,
        "tflop_per_s_per_w": rate / power_w,
    }


def add_up(columns: Iterable[Column]) -> Column:
    """Sum in the order given, point by point: the same to the bit however many points there are."""
    return reduce(operator.add, columns)


@dataclass(frozen=True)
class Constraint:
    """A condition on a column: ``Constraint("area_mm2", "<=", 800)``, or ``"area_mm2 <= 800"``."""

    column: str
    sign: str
    limit: float

    def __post_init__(self) -> None:
        if self.sign not in _SIGNS:
            raise InvalidOptionError(f"a constraint compares with {', '.join(_SIGNS)}, got {shown(self.sign)}")
        limit = self.limit.item() if isinstance(self.limit, np.number) else self.limit
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not abs(limit) <= math.inf:
            raise InvalidOptionError(f"the limit of a constraint on {self.column} must be a number, got {shown(limit)}")
        object.__setattr__(self, "limit", limit)

    def __str__(self) -> str:
        return f"{self.column} {self.sign} {_format_limit(self.limit)}"

    def violated(self, value: Any) -> str:
        """Return why a value breaks it, or nothing; what is not known breaks it too."""
        if value is None or value != value:  # noqa: PLR0124  nan
            return f"{self.column} is not known, and must be {self.sign} {_format_limit(self.limit)}"
        if _SIGNS[self.sign](value, self.limit):
            return ""
        return f"{self.column} = {value:.6g}, not {self.sign} {_format_limit(self.limit)}"


def _format_limit(limit: float) -> str:
    text = f"{limit:g}"
    return text if float(text) == limit else repr(limit)


def as_constraints(constraints: Any) -> tuple[Constraint, ...]:
    """Read constraints: one or several, as `Constraint` or text such as ``"area_mm2 <= 800"``."""
    if isinstance(constraints, str | Constraint):
        constraints = [constraints]
    if not isinstance(constraints, Iterable):
        raise InvalidOptionError(f"constraints are a list of conditions, 'area_mm2 <= 800', got {shown(constraints)}")
    return tuple(limit if isinstance(limit, Constraint) else _constraint_of(limit) for limit in constraints)


def _constraint_of(text: Any) -> Constraint:
    match = _CONSTRAINT.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= _MAX_CHARS else None
    with suppress(ValueError):
        if match and not math.isnan(limit := float(match[3].replace("_", ""))):
            return Constraint(match[1], match[2], limit)
    raise InvalidOptionError(f"a constraint is a column, a sign and a number, 'area_mm2 <= 800', got {shown(text)}")


_ARROW = {"whole": "int64", "number": "float64", "truth": "bool", "text": "string", "json": "string"}


def import_pyarrow() -> Any:
    """Return pyarrow."""
    with needs_extra("a sweep", "sweep"):
        import pyarrow as pa
        import pyarrow.parquet
    return pa


class Schema:
    """Columns of a sweep by name, each with its kind: whole, number, truth, text, or json for anything else."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.kinds = dict(kinds)

    def arrow(self) -> Any:
        """Return it as pyarrow has it."""
        pa = import_pyarrow()
        return pa.schema([(name, pa.type_for_alias(_ARROW[kind])) for name, kind in self.kinds.items()])

    def table(self, columns: Mapping[str, Any]) -> Any:
        """Return a pyarrow Table of these columns."""
        pa = import_pyarrow()
        schema = self.arrow()
        arrays = []
        for name, kind in self.kinds.items():
            values = columns[name]
            if not isinstance(values, np.ndarray):
                values = [_plain(kind, value) for value in values]
            arrays.append(pa.array(values, schema.field(name).type))
        return pa.Table.from_arrays(arrays, schema=schema)

    def plain(self, name: str, value: Any) -> Any:
        """Return a value of a column as a field of a spec has it."""
        return json.loads(value) if self.kinds[name] == "json" and isinstance(value, str) else value


def make_schema(space: Space, workloads: Sequence[Workload], first_rows: Sequence[tuple[Any, ...]]) -> Schema:
    """Return the columns of a sweep; the choices of some points show what a dependent variable is."""
    points = [space.values(row)[0] for row in first_rows]
    kinds = {"point": "whole"}
    for name in space.names:
        field = space.variables.get(name)
        if field is None:
            kinds[name] = space.kinds.get(name, "text")  # the base arch
        elif isinstance(field, Choices):
            kinds[name] = _kind_of(field.values)
        elif isinstance(field, Dependent):
            kind = _kind_of([point[name] for point in points])
            kinds[name] = "number" if kind == "whole" else kind  # another point's may have a fraction
        else:
            kinds[name] = "whole" if field.is_whole else "number"
    kinds.setdefault("area_mm2", "number")
    metrics = metric_names(workloads)
    clash = sorted(set(kinds) & {*metrics, "excluded"}) or sorted({name for name in metrics if metrics.count(name) > 1})
    if clash:
        raise InvalidOptionError(
            f"columns need names of their own; variables or workloads make a second {', '.join(clash)}"
        )
    return Schema(kinds | dict.fromkeys(metrics, "number") | {"excluded": "text"})


def _plain(kind: str, value: Any) -> Any:
    """Return a value as a column has it; None for one that a field cannot have, 8.5 cores: its point is excluded."""
    if kind == "json":
        return json.dumps(value, sort_keys=True, default=lambda of: of.item())
    if kind == "text":
        return str(value) if isinstance(value, str) else None
    if kind == "truth" or isinstance(value, bool):
        return value if isinstance(value, bool) and kind == "truth" else None
    if not isinstance(value, int | float):
        return None
    if kind == "whole":
        return int(value) if -(2**63) <= value < 2**63 and value == int(value) else None
    return float(value) if abs(value) <= sys.float_info.max or isinstance(value, float) else None


_TYPES: tuple[tuple[str, set[type]], ...] = (("truth", {bool}), ("whole", {int}), ("number", {int, float}))


def _kind_of(values: Sequence[Any]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "number"
    types = {type(value) for value in known}
    text = "text" if all(isinstance(value, str) for value in known) else "json"
    return next((kind for kind, allowed in _TYPES if types <= allowed), text)


_ATTENTION_GEMMS = ("attn_score", "attn_value")  # what fused attention computes
_GEMM_OPTIONS = ("quantize_lm_head", "quantize_router", "expert_imbalance")  # which attention does not depend on
_NAME_CHARS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


@dataclass(frozen=True)
class Workload:
    """GEMMs and attention that run one after the other.

    Attributes:
        name: letters, digits and underscores; columns of several workloads begin with it.
        gemms: different problems, each with how often it runs.
        attention: likewise, of fused attention (`GEMMEvaluator.evaluate_attention`; unfused on chips that cannot).
        num_tokens: tokens that one run makes or reads, for `tokens_per_s`; None: not a language model.
    """

    name: str
    gemms: tuple[tuple[GemmProblem, int], ...]
    num_tokens: int | None = None
    attention: tuple[tuple[AttentionProblem, int], ...] = ()

    def __repr__(self) -> str:
        attention = f" and {len(self.attention)} of attention" if self.attention else ""
        return f"<Workload {self.name} of {len(self.gemms)} GEMMs{attention}, num_tokens {self.num_tokens}>"

    def __post_init__(self) -> None:
        if not self.name or not set(self.name) <= _NAME_CHARS or self.name[0].isdigit():
            raise InvalidOptionError(f"a workload's name is of letters, digits and _, got {shown(self.name)}")
        for name, kind in (("gemms", GemmProblem), ("attention", AttentionProblem)):
            counts: dict[Any, int] = {}
            for problem, count in getattr(self, name):
                if not isinstance(problem, kind):
                    raise InvalidOptionError(
                        f"{self.name}: {name} must be ({kind.__name__}, count), got {shown(problem)}"
                    )
                counts[problem] = counts.get(problem, 0) + check_count(f"{self.name}: count", count)
            object.__setattr__(self, name, tuple(counts.items()))
        if not self.gemms:
            raise InvalidOptionError(f"workload {self.name} has no GEMMs")
        if self.num_tokens is not None:
            check_count(f"{self.name}: num_tokens", self.num_tokens)

    @property
    def flop(self) -> int:
        """Operations of one run, a MAC being two."""
        return sum(count * problem.flop for problem, count in self.problems)

    @property
    def problems(self) -> tuple[tuple[GemmProblem | AttentionProblem, int], ...]:
        """GEMMs, then attention, with counts."""
        return (*self.gemms, *self.attention)


def transformer_workloads(
    model: ModelConfig | str | os.PathLike[str],
    *,
    batch_size: int = 1,
    seq_len: int = 2048,
    phases: Sequence[Literal["prefill", "decode", "train"]] = ("prefill", "decode"),
    fused: bool = True,
    **options: Any,
) -> list[Workload]:
    """Return a workload for each phase of a transformer, named after it: one pass, every layer counted.

    Args:
        model: a `ModelConfig`, or the name or path of one.
        batch_size, seq_len, options: as for `transformer_gemms` (`dtype`, `tensor_parallel`, ...).
        phases: ``"prefill"``, ``"decode"`` and ``"train"``, a microbatch forward and backward; any of them.
        fused: attention is one kernel, whose scores stay on the chip, as engines have it; False: two GEMMs, scores and
            values, through DRAM.
    """
    check_flag("fused", fused)
    config = model if isinstance(model, ModelConfig) else load_model(model)
    if config.linear is not None or getattr(config.attention, "indexer", None) is not None:
        raise UnsupportedError(
            f"{config.name} has linear or sparse attention, which sweeps do not price: use estimate_model, on an "
            "NVIDIA GPU"
        )
    workloads = []
    for phase in phases:
        gemms = transformer_gemms(config, phase=phase, batch_size=batch_size, seq_len=seq_len, **options)
        tokens = batch_size * (1 if phase == "decode" else seq_len)
        attention: list[tuple[AttentionProblem, int]] = []
        if fused:
            gemms = tuple(gemm for gemm in gemms if not gemm.name.startswith(_ATTENTION_GEMMS))
            of_step = {name: value for name, value in options.items() if name not in _GEMM_OPTIONS}
            pass_ = "prefill" if phase == "train" else phase
            operations = model_operations(config, phase=pass_, batch_size=batch_size, seq_len=seq_len, **of_step)
            forward = [(one.work.problem, one.num_layers) for one in operations if isinstance(one.work, AttentionWork)]
            backward = [(replace(problem, backward=True), num) for problem, num in forward if phase == "train"]
            attention = forward + backward
        counted = tuple((gemm.problem, gemm.total_count) for gemm in gemms)
        workloads.append(Workload(phase, counted, tokens, tuple(attention)))
    return workloads


def model_workloads(
    model: ModelConfig | str | os.PathLike[str], arch: ArchSpec, *, dtype: str | None = None, **options: Any
) -> list[Workload]:
    """Return the workloads of a model in the types that it has on an arch: `types_on` and `model_on` say which."""
    config = model_on(arch, model if isinstance(model, ModelConfig) else load_model(model))
    return transformer_workloads(config, **types_on(arch, dtype, None, config), **options)


def as_workloads(workloads: Any, arch: ArchSpec, dtype: str | None = None) -> tuple[Workload, ...]:
    """Read what a user gives, see `sweep`: one or several `Workload`s, a model, GEMMs, or a mapping of names to GEMMs.

    (G, M, K, N) are of the default type of the base arch, and a model has the types that it has there, unless `dtype`.
    """
    listed: list[Workload]
    if isinstance(workloads, Workload):
        listed = [workloads]
    elif isinstance(workloads, str | ModelConfig | os.PathLike):
        listed = model_workloads(workloads, arch, dtype=dtype)
    elif isinstance(workloads, Mapping):
        listed = [
            of if isinstance(of, Workload) else Workload(name, tuple(_gemms(of, arch, dtype)))
            for name, of in workloads.items()
        ]
    elif isinstance(workloads, Iterable):
        items = list(workloads)
        are_workloads = bool(items) and all(isinstance(item, Workload) for item in items)
        listed = items if are_workloads else [Workload("gemms", tuple(_gemms(items, arch, dtype)))]
    else:
        raise InvalidOptionError(f"workloads must be GEMMs, a model or Workloads, got {shown(workloads)}")
    names = [workload.name for workload in listed]
    if len(set(names)) < len(names):
        raise InvalidOptionError(f"workloads need names of their own, got {', '.join(names)}")
    return tuple(listed)


def _gemms(items: Any, arch: ArchSpec, dtype: str | None) -> Iterable[tuple[GemmProblem, int]]:
    for item in items:
        is_counted = isinstance(item, Sequence) and len(item) == 2
        gemm, count = item if is_counted else (item, 1)
        if isinstance(gemm, GemmProblem):
            yield gemm, count
        elif isinstance(gemm, LayerGemm) and not is_counted:
            yield gemm.problem, gemm.total_count
        elif isinstance(gemm, Sequence) and len(gemm) == 4:
            yield make_problem(*gemm, default_dtype=arch.default_dtype, dtype=dtype), count
        else:
            raise InvalidOptionError(
                f"a GEMM is (G, M, K, N), ((G, M, K, N), count) or a GemmProblem, got {shown(item)}"
            )


_BITS_PER_BYTE = 8
_SCORE_PASSES = 4  # unfused: written by the first GEMM, read and written by the softmax, read by the second GEMM


def attention_dram_bytes(result: AttentionResult) -> float:
    """Return the DRAM traffic of attention: as its mapping has it, else the compulsory bytes, and scores if unfused."""
    if result.dram_bytes is not None:
        return float(result.dram_bytes)
    problem = result.problem
    scores = problem.batch * problem.num_heads * problem.q_len * problem.kv_len * problem.dtype.bits / _BITS_PER_BYTE
    return float(problem.num_bytes) + (0.0 if result.is_fused else _SCORE_PASSES * scores)


def attention_energy_pj(arch: ArchSpec, result: AttentionResult) -> float:
    """Return the energy of attention by MODEL.md, "Energy", without the softmax; nan where the chip does not say."""
    if not isinstance(arch, MulticoreSpec):
        return math.nan
    arch = arch.for_dtype(result.problem.dtype)
    mac_pj = arch.mac_pj.get(result.problem.dtype)
    if mac_pj is None or arch.sram_pj_per_byte is None or arch.dram_pj_per_byte is None:
        return math.nan
    if arch.noc_gb_per_s is not None and arch.noc_pj_per_byte is None:
        return math.nan
    macs, dram_bytes = result.flop / FLOP_PER_MAC, attention_dram_bytes(result)
    operand_bytes = macs * (1 / arch.cube_m + 1 / arch.cube_n) * result.problem.dtype.bits / _BITS_PER_BYTE
    energy_pj = macs * mac_pj + dram_bytes * (arch.dram_pj_per_byte + (arch.noc_pj_per_byte or 0.0))
    energy_pj += (dram_bytes + operand_bytes) * arch.sram_pj_per_byte
    return energy_pj + pj_per_us(arch.static_w) * result.latency_us
