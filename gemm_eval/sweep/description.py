"""The description of a sweep: plain values that say what it is, a digest of them, and the file that holds them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, build_spec
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.models.gpu import GPU_MODEL_VERSION, calibration_stamp
from gemm_eval.models.multicore import MODEL_VERSION
from gemm_eval.storage import read_bounded
from gemm_eval.sweep import fields
from gemm_eval.sweep.chunk import SweepWork
from gemm_eval.sweep.fields import Choices, Dependent, LogRange, Range, check_value
from gemm_eval.sweep.metrics import as_constraints, metric_names
from gemm_eval.sweep.space import ARCH, Adaptive, Grid, LatinHypercube, Random
from gemm_eval.sweep.workload import Workload
from gemm_eval.words import shown
from gemm_eval.workload import AttentionProblem, GemmProblem


@dataclass(frozen=True)
class Chunks:
    """The chunks of a sweep, by the number of their first point.

    Attributes:
        num_points: of the sweep.
        size: points of a chunk; fewer at the end of a batch.
        batch_size: points that are chosen together, all of them unless the sampling is adaptive.
    """

    num_points: int
    size: int
    batch_size: int

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


def fingerprint(function: Callable[..., Any]) -> str:
    """Return the digest. Functions that differ in code, defaults, closures or globals that they name have another.

    An object that can only be told by its address counts by its type alone.
    """
    digest = hashlib.sha256()
    for part in _parts(function, {}):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[bytes]:
    """Yield what makes up a value, without addresses and without the order of sets, which differ between processes."""
    yield type(value).__qualname__.encode()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value).encode()
        return
    if id(value) in seen:  # functions that call each other
        return
    seen[id(value)] = value  # kept, or its id would go to another
    if isinstance(value, types.CodeType):
        yield value.co_code
        yield repr((value.co_names, value.co_varnames, value.co_freevars)).encode()
        for constant in value.co_consts:
            yield from _parts(constant, seen)
    elif isinstance(value, types.FunctionType):
        yield from _parts(value.__code__, seen)
        yield from _parts([value.__defaults__, value.__kwdefaults__], seen)
        for cell in value.__closure__ or ():
            yield from _parts(_content(cell), seen)
        for name in _names(value.__code__):
            if name in value.__globals__:
                yield from _parts(value.__globals__[name], seen)
    elif isinstance(value, functools.partial):
        yield from _parts([value.func, value.args, value.keywords], seen)
    elif isinstance(value, types.MethodType):
        yield from _parts([value.__func__, value.__self__], seen)
    elif isinstance(value, types.ModuleType | type | types.BuiltinFunctionType):
        yield f"{getattr(value, '__module__', '')}.{value.__name__}".encode()
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, set | frozenset):
        yield from sorted(b"\0".join(_parts(item, seen)) for item in value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _parts([key, item], seen)
    else:
        yield from _parts(_state_of(value), seen)
        yield from _parts(vars(type(value)).get("__call__"), seen)


def _names(code: types.CodeType) -> list[str]:
    """Names that code may look up among globals, its inner functions included."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return [*code.co_names, *(name for one in inner for name in _names(one))]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _state_of(value: Any) -> Any:
    """Return what copies of a value are made of: its class and its content; None where it cannot be copied."""
    try:
        return value.__reduce_ex__(4)
    except Exception:  # an object may raise anything here
        return None


VERSION = 3
"""The version of descriptions and of the parts beside them."""

_FIELDS: dict[str, Callable[..., fields.Field]] = {
    "Choices": Choices, "Range": Range, "LogRange": LogRange, "Dependent": Dependent
}  # fmt: skip
_SAMPLINGS: dict[str, Callable[..., Any]] = {
    "Grid": Grid, "Random": Random, "LatinHypercube": LatinHypercube, "Adaptive": Adaptive
}  # fmt: skip
_PROBLEM = (
    "input_dtype", "weight_dtype", "output_dtype", "accumulator_dtype", "group_size", "scale_dtype", "zero_dtype",
    "group_n",
)  # fmt: skip
_NUM_IN_ROW = 4 + len(_PROBLEM) + 1  # sizes, types, count; of a grouped GEMM row groups behind these


def describe(
    work: SweepWork, objectives: Sequence[str], sampling: Any, num_points: int, chunk_size: int
) -> dict[str, Any]:
    """Return a sweep as plain values. Functions stand in it by a digest, see `fingerprint`."""
    space = work.space
    gpus = {name: arch for name, arch in space.bases.items() if isinstance(arch, GpuSpec)}
    description = {
        "version": VERSION,
        "models": {"multicore": MODEL_VERSION, "gpu": GPU_MODEL_VERSION},
        "calibrations": {name: calibration_stamp(arch) for name, arch in gpus.items()},
        "bases": {name: arch.model_dump(mode="json") for name, arch in space.bases.items()},
        "variables": {name: _field(field) for name, field in space.variables.items()},
        "fields": {name: _field(field) for name, field in space.fields.items()},
        "workloads": [
            {
                "name": one.name,
                "num_tokens": one.num_tokens,
                "gemms": [_gemm(problem, count) for problem, count in one.gemms],
                **_attention(one),
            }
            for one in work.workloads
        ],
        "objectives": list(objectives),
        "constraints": [str(one) for one in work.constraints],
        "options": dict(work.options),
        "sampling": _described(sampling),
        "num_points": num_points,
        "chunk_size": chunk_size,
        "columns": work.schema.kinds,
    }
    plain: dict[str, Any] = json.loads(json.dumps(description))
    return plain | {"digest": digest_of(plain)}


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
    workloads = []
    for one in description["workloads"]:
        for row in one["gemms"]:
            if len(row) not in (_NUM_IN_ROW, _NUM_IN_ROW + 1):
                raise InvalidOptionError(
                    f"a GEMM has {_NUM_IN_ROW} entries, or one more of row groups, got {len(row)} ({one['name']})"
                )
        gemms = tuple((_problem(row), row[_NUM_IN_ROW - 1]) for row in one["gemms"])
        attention = tuple((_attention_problem(said), said["count"]) for said in one.get("attention", ()))
        workloads.append(Workload(one["name"], gemms, one["num_tokens"], attention))
    return tuple(workloads)


def field_of(said: Mapping[str, Any]) -> fields.Field:
    """Return the field that a description speaks of; of a function there is only its digest."""
    if said.keys() == {"kind", "function"} and isinstance(said["function"], str):
        return Dependent(said["function"])
    kind, rest = said.get("kind"), {key: value for key, value in said.items() if key != "kind"}
    is_plain = isinstance(rest.get("values", []), list) and isinstance(rest.get("of", ""), str)
    if not isinstance(kind, str) or kind not in _FIELDS or not is_plain:
        raise InvalidOptionError(f"no field is like {shown(said)}")
    try:
        return _FIELDS[kind](**rest)
    except TypeError as error:
        raise InvalidOptionError(f"no field is like {shown(said)}: {error}") from None


def sampling_of(said: Mapping[str, Any]) -> Any:
    """Return the sampling that a description speaks of; None: a user's own."""
    kind, rest = said.get("kind"), {key: value for key, value in said.items() if key != "kind"}
    if not isinstance(kind, str):
        raise InvalidOptionError(f"no sampling is like {shown(said)}")
    try:
        return _SAMPLINGS[kind](**rest) if kind in _SAMPLINGS else None
    except TypeError as error:
        raise InvalidOptionError(f"no sampling is like {shown(said)}: {error}") from None


def _gemm(problem: GemmProblem, count: int) -> list[Any]:
    # plain GEMMs are described as they were before there were groups: their sweeps go on in the folders that exist
    groups = [] if problem.row_groups is None else [list(problem.row_groups)]
    return [*problem.sizes, *_types(problem), count, *groups]


def _attention(workload: Workload) -> dict[str, Any]:
    """Return the attention of a workload as an entry of its description, none where it has none."""
    if not workload.attention:
        return {}
    return {"attention": [_plain(dataclasses.asdict(problem)) | {"count": num} for problem, num in workload.attention]}


def _attention_problem(said: Mapping[str, Any]) -> AttentionProblem:
    try:
        return AttentionProblem(**{name: value for name, value in said.items() if name != "count"})
    except TypeError as error:
        raise InvalidOptionError(f"no attention is like {shown(said)}: {error}") from None


def _problem(row: Sequence[Any]) -> GemmProblem:
    words = dict(zip(("G", "M", "K", "N", *_PROBLEM), row[: _NUM_IN_ROW - 1], strict=True))
    return GemmProblem(**words, row_groups=row[_NUM_IN_ROW] if len(row) > _NUM_IN_ROW else None)


def _types(problem: GemmProblem) -> list[Any]:
    values = (getattr(problem, name) for name in _PROBLEM)
    return [value if value is None or isinstance(value, int) else str(value) for value in values]


def _field(field: fields.Field) -> dict[str, Any]:
    if isinstance(field, Dependent) and not isinstance(field.of, str):
        return {"kind": "Dependent", "function": fingerprint(field.of)}
    return _described(field)


def _described(of: Any) -> dict[str, Any]:
    """A dataclass as its name and fields; of anything else, such as a user's own sampling, what it says of itself."""
    if not dataclasses.is_dataclass(of):
        return {"kind": type(of).__name__, "said": repr(of)}
    shown = (field.name for field in dataclasses.fields(of) if field.repr)
    return {"kind": type(of).__name__, **{name: _plain(getattr(of, name)) for name in shown}}


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


DESCRIPTION = "_sweep.json"
"""The name of the file; readers of parquet folders pass over names that begin with _."""

_MAX_BYTES = 1 << 24
_Count = Annotated[int, Field(ge=1, lt=1 << 63)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Options(_Strict):
    allow_idle_cores: bool
    library: str | None
    l2: str | None
    clock: str | None


class _Workload(_Strict):
    name: str
    num_tokens: int | None
    gemms: list[list[int | str | list[int] | None]]
    attention: list[dict[str, int | str | bool | None]] = []


class _Description(_Strict):
    version: int
    digest: str
    models: dict[str, str]
    calibrations: dict[str, str]
    bases: dict[str, dict[str, Any]] = Field(min_length=1)
    variables: dict[str, dict[str, Any]]
    fields: dict[str, dict[str, Any]]
    workloads: list[_Workload] = Field(min_length=1)
    objectives: list[str] = Field(min_length=1)
    constraints: list[str]
    options: _Options
    sampling: dict[str, Any]
    num_points: _Count
    chunk_size: _Count
    columns: dict[str, Literal["whole", "number", "truth", "text", "json"]]


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
    """Return what the sweep in a folder is."""
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
    what = "bring it back from a copy, or sweep into another folder"
    try:
        if document.get("digest") != digest_of(document):
            raise InvalidOptionError("its content is not what was written")
        _check(document)
    except (GemmEvalError, ValueError, RecursionError) as error:
        raise GemmEvalError(f"{file} is damaged: {error}; {what}") from None
    return document


def chunks_of(description: Mapping[str, Any]) -> Chunks:
    """Return how the points of a description are cut."""
    sampling = sampling_of(description["sampling"])
    num_points = description["num_points"]
    batch_size = sampling.batch_size if isinstance(sampling, Adaptive) else num_points
    return Chunks(num_points, description["chunk_size"], batch_size)


def _check(document: dict[str, Any]) -> None:
    """Check that everything in a description is what `describe` says of some sweep."""
    said = build_spec(_Description, document, origin=DESCRIPTION)
    for label in base_archs(document):
        check_value(label)
    for one in (*said.variables.values(), *said.fields.values()):
        field_of(one)
    workloads = workloads_of(document)
    sampling_of(said.sampling)
    names = ["point", ARCH, *said.variables, *said.fields]
    names += [] if "area_mm2" in names else ["area_mm2"]
    names += [*metric_names(workloads), "excluded"]
    if list(said.columns) != names or len(set(names)) < len(names):
        raise InvalidOptionError(f"columns must be {', '.join(names)}")
    used = [*said.objectives, *(one.column for one in as_constraints(said.constraints))]
    for name in used:
        if said.columns.get(name) not in ("whole", "number"):
            raise InvalidOptionError(f"{shown(name)} is no column of numbers")
