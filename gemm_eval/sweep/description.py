"""The description of a sweep: plain values that say what it is, a digest of them, and the file that holds them."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, build_spec
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.models.gpu import GPU_MODEL_VERSION, calibration_stamp
from gemm_eval.models.multicore import MODEL_VERSION
from gemm_eval.storage import read_bounded
from gemm_eval.sweep.chunk import SweepWork
from gemm_eval.sweep.fields import Dependent
from gemm_eval.sweep.space import Adaptive
from gemm_eval.sweep.workload import Workload
from gemm_eval.workload import AttentionProblem, GemmProblem


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
            with contextlib.suppress(ValueError):  # not filled yet
                yield from _parts(cell.cell_contents, seen)
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
        with contextlib.suppress(Exception):  # an object may raise anything where it is copied
            yield from _parts(value.__reduce_ex__(4), seen)
        yield from _parts(vars(type(value)).get("__call__"), seen)


def _names(code: types.CodeType) -> list[str]:
    """Names that code may look up among globals, its inner functions included."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return [*code.co_names, *(name for function in inner for name in _names(function))]


DESCRIPTION = "_sweep.json"
"""The name of the file; readers of parquet folders pass over names that begin with _."""

VERSION = 4
"""The version of descriptions and of the parts beside them."""

_MAX_BYTES = 1 << 24

T = TypeVar("T")


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
        "variables": {name: _described(field) for name, field in space.variables.items()},
        "fields": {name: _described(field) for name, field in space.fields.items()},
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
    if isinstance(value, Dependent) and not isinstance(value.of, str):
        return {"kind": "Dependent", "function": fingerprint(value.of)}
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
