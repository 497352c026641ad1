"""Sweeps as YAML files, which `gemm-eval sweep` runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gemm_eval.arch import ArchSpec, build_spec, read_yaml
from gemm_eval.errors import ArchNotFoundError, ArchValidationError, GemmEvalError, InvalidOptionError
from gemm_eval.sweep.fields import LogRange, Range
from gemm_eval.sweep.space import Adaptive, Grid, LatinHypercube, Random, Space
from gemm_eval.sweep.workload import Workload, as_workloads, model_workloads
from gemm_eval.units import UnitError, in_unit_of
from gemm_eval.words import shown
from gemm_eval.workload import check_row_groups, make_problem

_SAMPLINGS: dict[str, Callable[..., Any]] = {
    "grid": Grid, "random": Random, "latin_hypercube": LatinHypercube, "adaptive": Adaptive,
}  # fmt: skip
_RANGES: dict[str, type[Range]] = {"range": Range, "log_range": LogRange}


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Model(_Strict):
    model: str = Field(description="preset, or path of a Hugging Face config.json")
    phases: list[Literal["prefill", "decode", "train"]] = Field(default=["prefill", "decode"], min_length=1)
    name: str | None = Field(default=None, description="of the workload; with two phases, before theirs")
    batch_size: int = 1
    seq_len: int = 2048
    dtype: str | None = None
    fused: bool = Field(default=True, description="attention is one kernel; false: two GEMMs through DRAM")
    tensor_parallel: int = 1
    expert_parallel: int = 1

    def workloads(self, file: Path, base: ArchSpec) -> list[Workload]:
        """Return the workloads of the phases."""
        workloads = model_workloads(_relative(file, self.model), base, **self.model_dump(exclude={"model", "name"}))
        if self.name is None:
            return workloads
        names = [self.name] if len(workloads) == 1 else [f"{self.name}_{load.name}" for load in workloads]
        return [replace(load, name=name) for name, load in zip(names, workloads, strict=True)]


class _Grouped(_Strict):
    row_groups: list[int] = Field(description="rows of each group")
    K: int
    N: int
    count: int = Field(default=1, description="how often it runs")


class _Gemms(_Strict):
    name: str
    gemms: list[list[int]] = Field(default=[], description="G, M, K, N and, if not 1, how often it runs")
    grouped: list[_Grouped] = Field(default=[], description="GEMMs whose groups have rows of their own")
    num_tokens: int | None = None
    dtype: str | None = None

    def workloads(self, file: Path, base: ArchSpec) -> list[Workload]:  # noqa: ARG002
        """Return the workload."""
        if not all(len(row) in (4, 5) for row in self.gemms):
            raise InvalidOptionError("a GEMM is [G, M, K, N] or [G, M, K, N, count]")
        rows: list[Any] = [row if len(row) == 4 else (row[:4], row[4]) for row in self.gemms]
        for grouped in self.grouped:
            groups = check_row_groups(grouped.row_groups)
            types: Any = {"default_dtype": base.default_dtype, "dtype": self.dtype, "row_groups": groups}
            rows.append((make_problem(len(groups), max(groups), grouped.K, grouped.N, **types), grouped.count))
        (workload,) = as_workloads({self.name: rows}, base, self.dtype)
        return [replace(workload, num_tokens=self.num_tokens)]


class _File(_Strict):
    base: str | list[str] = Field(description="name or path of one arch or several")
    fields: dict[str, Any] = {}
    variables: dict[str, Any] = {}
    workloads: list[dict[str, Any]] = Field(min_length=1)
    objectives: list[str] = Field(default=["latency_us"], min_length=1)
    constraints: list[str] = []
    sampling: dict[str, Any] = {"method": "grid"}
    allow_idle_cores: bool = False
    library: str | None = None
    l2: str | None = None
    clock: str | None = None


@dataclass(frozen=True)
class SweepFile:
    """The sweep that a file asks for.

    Attributes:
        space: the chips.
        workloads: what runs on each.
        options: keyword arguments of `sweep`: objectives, constraints, sampling and those of the evaluator.
    """

    space: Space
    workloads: tuple[Workload, ...]
    options: Mapping[str, Any]


def read_sweep_file(path: str | os.PathLike[str]) -> SweepFile:
    """Read a sweep::

        base: demo-8core                                  # a preset, a path, or a list of them
        fields:
          num_cores: [8, 16, 32, 64]
          sram_bytes: {log_range: [262144, 4194304], num: 5}
          dram_gb_per_s: {range: [100.0, 1600.0], num: 6}
          area_mm2: = num_cores * (2.0 + 1.2 * sram_bytes / 2**20)   # follows from the others
        workloads:
          - {model: llama-3-8b, phases: [decode], batch_size: 16, seq_len: 4096, dtype: fp16}
          - {name: mine, gemms: [[1, 16, 4096, 4096], [1, 16, 4096, 14336, 3]]}  # G, M, K, N, how often
          - {name: experts, grouped: [{row_groups: [120, 3, 0, 17], K: 7168, N: 4096, count: 58}]}  # rows of each group
        objectives: [latency_us, area_mm2]
        constraints: [area_mm2 <= 200]
        sampling: {method: latin_hypercube, num_points: 1000, seed: 0}    # or random, adaptive, grid (the default)

    Paths of archs and models are relative to the file.

    Raises:
        GemmEvalError: it cannot be read, or asks for something that cannot be; the message names file and key.
    """
    file = Path(path)
    try:
        data = read_yaml(file)
        asked = build_spec(_File, data, origin=str(file))
    except (ArchNotFoundError, ArchValidationError) as error:
        raise InvalidOptionError(str(error)) from None
    try:
        bases = [asked.base] if isinstance(asked.base, str) else asked.base
        fields, variables = (
            {name: _field(name, value) for name, value in given.items()} for given in (asked.fields, asked.variables)
        )
        space = Space([_relative(file, base) for base in bases], fields, variables=variables)
        workloads = _workloads(file, space, asked.workloads)
        sampling = _sampling(asked.sampling)
    except GemmEvalError as error:
        raise InvalidOptionError(f"{file}: {error}") from None
    options = asked.model_dump(exclude={"base", "fields", "variables", "workloads"})
    return SweepFile(space, workloads, options | {"sampling": sampling})


def _relative(file: Path, name: str) -> str:
    return str(file.parent / name) if name.endswith((".yaml", ".yml", ".json")) else name


def _field(name: str, value: Any) -> Any:
    kind = next((key for key in value if key in _RANGES), None) if isinstance(value, dict) else None
    if kind is None:
        return value
    ends, rest = value[kind], {key: of for key, of in value.items() if key != kind}
    if not isinstance(ends, list) or len(ends) != 2 or not set(rest) <= {"num", "step"}:
        raise InvalidOptionError(f"{name}: a range is {{{kind}: [low, high], num: 5, step: 1}}, got {shown(value)}")
    try:
        return _RANGES[kind](*(in_unit_of(name, end) for end in ends), **rest)
    except (UnitError, InvalidOptionError) as error:
        raise InvalidOptionError(f"{name}: {error}") from None


def _workloads(file: Path, space: Space, items: list[dict[str, Any]]) -> tuple[Workload, ...]:
    base = next(iter(space.bases.values()))
    workloads: list[Workload] = []
    for at, item in enumerate(items, 1):
        origin = f"workloads, {at}"
        kind: type[_Model] | type[_Gemms] = _Model if "model" in item else _Gemms
        asked = build_spec(kind, item, origin=origin)
        try:
            workloads += asked.workloads(file, base)
        except GemmEvalError as error:
            raise InvalidOptionError(f"{origin}: {error}") from None
    return as_workloads(workloads, base)


def _sampling(asked: dict[str, Any]) -> Any:
    method = asked.get("method")
    if not isinstance(method, str) or method not in _SAMPLINGS:
        raise InvalidOptionError(f"sampling: method must be one of {', '.join(_SAMPLINGS)}, got {shown(method)}")
    try:
        return _SAMPLINGS[method](**{key: value for key, value in asked.items() if key != "method"})
    except (TypeError, InvalidOptionError) as error:
        raise InvalidOptionError(f"sampling: {method}: {error}") from None
