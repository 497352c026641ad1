"""What a sweep is, as JSON: enough to tell it from another, and to rebuild chips and workloads without its space."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, build_spec
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu import GPU_MODEL_VERSION, calibration_stamp
from gemm_eval.models.multicore import MODEL_VERSION
from gemm_eval.sweep.fields import Choices, Dependent, Field, LogRange, Range
from gemm_eval.sweep.fingerprint import fingerprint
from gemm_eval.sweep.sampling import Adaptive, Grid, LatinHypercube, Random
from gemm_eval.sweep.work import SweepWork
from gemm_eval.sweep.workload import Workload
from gemm_eval.words import shown
from gemm_eval.workload import AttentionProblem, GemmProblem

__all__ = ["VERSION", "base_archs", "describe", "digest_of", "field_of", "sampling_of", "workloads_of"]

VERSION = 3
"""Of descriptions and of the parts beside them."""

_FIELDS: dict[str, Callable[..., Field]] = {
    "Choices": Choices, "Range": Range, "LogRange": LogRange, "Dependent": Dependent
}  # fmt: skip
_SAMPLINGS: dict[str, Callable[..., Any]] = {
    "Grid": Grid, "Random": Random, "LatinHypercube": LatinHypercube, "Adaptive": Adaptive
}  # fmt: skip
_PROBLEM = (
    "input_dtype",
    "weight_dtype",
    "output_dtype",
    "accumulator_dtype",
    "group_size",
    "scale_dtype",
    "zero_dtype",
    "group_n",
)
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
    """Return the base archs of a description.

    Raises:
        ArchValidationError: one is no valid spec.
    """
    found: dict[str, ArchSpec] = {}
    for name, data in description["bases"].items():
        kind: type[ArchSpec] = GpuSpec if data.get("type") == "gpu" else MulticoreSpec
        found[name] = build_spec(kind, data, origin=name)
    return found


def workloads_of(description: Mapping[str, Any]) -> tuple[Workload, ...]:
    """Return the workloads of a description.

    Raises:
        InvalidInputError: they are none.
    """
    found = []
    for one in description["workloads"]:
        for row in one["gemms"]:
            if len(row) not in (_NUM_IN_ROW, _NUM_IN_ROW + 1):
                raise InvalidOptionError(
                    f"a GEMM has {_NUM_IN_ROW} entries, or one more of row groups, got {len(row)} ({one['name']})"
                )
        gemms = tuple((_problem(row), row[_NUM_IN_ROW - 1]) for row in one["gemms"])
        attention = tuple((_attention_problem(said), said["count"]) for said in one.get("attention", ()))
        found.append(Workload(one["name"], gemms, one["num_tokens"], attention))
    return tuple(found)


def field_of(said: Mapping[str, Any]) -> Field:
    """Return the field that a description speaks of; of a function there is only its digest.

    Raises:
        InvalidOptionError: it is none.
    """
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
    """Return the sampling that a description speaks of; None: a user's own.

    Raises:
        InvalidOptionError: it is none.
    """
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


def _field(field: Field) -> dict[str, Any]:
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
