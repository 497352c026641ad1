"""The description of a sweep: plain values with a digest, and the YAML files that `gemm-eval sweep` runs."""

import dataclasses
import enum
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, build_spec, read_yaml
from gemm_eval.errors import ArchNotFoundError, ArchValidationError, GemmEvalError, InvalidOptionError
from gemm_eval.models.gpu import GPU_MODEL_VERSION, calibration_stamp
from gemm_eval.models.multicore import MODEL_VERSION
from gemm_eval.storage import read_bounded
from gemm_eval.sweep.chunk import SweepWork
from gemm_eval.sweep.fields import Dependent, LogRange, Range
from gemm_eval.sweep.metrics import Workload, as_workloads, model_workloads
from gemm_eval.sweep.space import Adaptive, Grid, LatinHypercube, Random, Space
from gemm_eval.units import UnitError, in_unit_of
from gemm_eval.words import shown
from gemm_eval.workload import AttentionProblem, GemmProblem, check_row_groups, make_problem


class Chunks(NamedTuple):
    """The chunks of a sweep, by the number of their first point."""

    num_points: int
    size: int  # points of a chunk; fewer at the end of a batch
    batch_size: int  # points that are chosen together, all of them unless the sampling is adaptive

    def num_at(self, first: int) -> int:
        """Return how many points the chunk has that begins at a point, 0 if none does."""
        inside = first % self.batch_size
        if not 0 <= first < self.num_points or inside % self.size:
            return 0
        return min(self.size, self.batch_size - inside, self.num_points - first)

    def between(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield (first point, number of points) of the chunks from `start`, where one begins, to `stop`."""
        while start < stop:
            num = self.num_at(start)
            yield start, num
            start += num


DESCRIPTION = "_sweep.json"
"""The name of the file; readers of parquet folders pass over names that begin with _."""

VERSION = 4
"""The version of descriptions and of the parts beside them."""

_MAX_BYTES = 1 << 24

T = TypeVar("T")


def describe(
    work: SweepWork, objectives: Sequence[str], sampling: Any, num_points: int, chunk_size: int,
    first_rows: Sequence[tuple[Any, ...]],
) -> dict[str, Any]:  # fmt: skip
    """Return a sweep as plain values; a function among its fields is known by its values at the first points."""
    space = work.space
    points = [space.values(row)[0] for row in first_rows]

    def fields(of_space: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: {"kind": "Dependent", "values": [_plain(point[name]) for point in points]}
            if isinstance(field, Dependent) and callable(field.of)
            else _described(field)
            for name, field in of_space.items()
        }

    gpus = {name: arch for name, arch in space.bases.items() if isinstance(arch, GpuSpec)}
    description = {
        "version": VERSION,
        "models": {"multicore": MODEL_VERSION, "gpu": GPU_MODEL_VERSION},
        "calibrations": {name: calibration_stamp(arch) for name, arch in gpus.items()},
        "bases": {name: arch.model_dump(mode="json") for name, arch in space.bases.items()},
        "variables": fields(space.variables),
        "fields": fields(space.fields),
        "workloads": [
            {
                "name": load.name,
                "num_tokens": load.num_tokens,
                "gemms": [_counted(problem, count) for problem, count in load.gemms],
                "attention": [_counted(problem, count) for problem, count in load.attention],
            }
            for load in work.workloads
        ],
        "objectives": list(objectives),
        "constraints": [str(limit) for limit in work.constraints],
        "options": dict(work.options),
        "sampling": _described(sampling),
        "num_points": num_points,
        "chunk_size": chunk_size,
        "columns": work.schema.kinds,
    }
    plain: dict[str, Any] = json.loads(json.dumps(description))
    return plain | {"digest": digest_of(plain)}


def _counted(problem: GemmProblem | AttentionProblem, count: int) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(problem) if field.init)
    return {name: _plain(getattr(problem, name)) for name in names} | {"count": count}


def _described(value: Any) -> dict[str, Any]:
    """Return a dataclass as its name and fields; of anything else, such as a user's own sampling, its repr."""
    if not dataclasses.is_dataclass(value):
        return {"kind": type(value).__name__, "said": repr(value)}
    names = (field.name for field in dataclasses.fields(value) if field.repr)
    return {"kind": type(value).__name__, **{name: _plain(getattr(value, name)) for name in names}}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def digest_of(description: Mapping[str, Any]) -> str:
    """Return the digest of a description, of all that it says but the digest itself."""
    content = {key: value for key, value in description.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def base_archs(description: Mapping[str, Any]) -> dict[str, ArchSpec]:
    """Return the base archs of a description."""
    archs: dict[str, ArchSpec] = {}
    for name, data in description["bases"].items():
        kind: type[ArchSpec] = GpuSpec if data.get("type") == "gpu" else MulticoreSpec
        archs[name] = build_spec(kind, data, origin=name)
    return archs


def workloads_of(description: Mapping[str, Any]) -> tuple[Workload, ...]:
    """Return the workloads of a description."""

    def problems(make: Callable[..., T], rows: Sequence[dict[str, Any]]) -> tuple[tuple[T, int], ...]:
        return tuple((make(**{name: row[name] for name in row if name != "count"}), row["count"]) for row in rows)

    return tuple(
        Workload(
            load["name"],
            problems(GemmProblem, load["gemms"]),
            load["num_tokens"],
            problems(AttentionProblem, load["attention"]),
        )
        for load in description["workloads"]
    )


def chunks_of(description: Mapping[str, Any]) -> Chunks:
    """Return how the points of a description are cut."""
    num_points = description["num_points"]
    is_adaptive = description["sampling"]["kind"] == Adaptive.__name__
    batch_size = description["sampling"]["batch_size"] if is_adaptive else num_points
    return Chunks(num_points, description["chunk_size"], batch_size)


def description_bytes(description: Mapping[str, Any]) -> bytes:
    """Return the file of a description."""
    raw = json.dumps(description, indent=1).encode()
    if len(raw) > _MAX_BYTES:
        raise InvalidOptionError(
            f"the description of a sweep in a folder takes {_MAX_BYTES:,} bytes at most, got {len(raw):,}: give ranges "
            "instead of long lists of values, or fewer GEMMs"
        )
    return raw


def read_description(folder: Path) -> dict[str, Any]:
    """Return the description of the sweep in a folder."""
    file = folder / DESCRIPTION
    try:
        document = json.loads(read_bounded(file, _MAX_BYTES, "description of a sweep").decode("utf-8"))
    except (GemmEvalError, ValueError, RecursionError) as error:
        raise GemmEvalError(f"{folder} is no folder of a sweep: {error}") from None
    if not isinstance(document, dict):
        raise GemmEvalError(f"{folder} is no folder of a sweep: {DESCRIPTION} holds no table")
    if document.get("version") != VERSION:
        raise GemmEvalError(
            f"{file} is of another version of gemm_eval, which wrote folders otherwise: sweep into another folder"
        )
    if document.get("digest") != digest_of(document):
        raise GemmEvalError(
            f"{file} is damaged: its content is not what was written; bring it back from a copy, or sweep into another "
            "folder"
        )
    return document


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
