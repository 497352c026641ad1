"""The description of a sweep as a file, `_sweep.json`: written once and never half, read with care."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gemm_eval.arch import build_spec
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.storage import read_bounded
from gemm_eval.sweep.chunks import Chunks
from gemm_eval.sweep.describe import VERSION, base_archs, digest_of, field_of, sampling_of, workloads_of
from gemm_eval.sweep.metrics import as_constraints, metric_names
from gemm_eval.sweep.sampling import Adaptive
from gemm_eval.sweep.space import ARCH
from gemm_eval.sweep.values import check_value
from gemm_eval.words import shown

__all__ = ["DESCRIPTION", "chunks_of", "description_bytes", "read_description"]

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
    """Return the file of a description.

    Raises:
        InvalidOptionError: it is too large.
    """
    raw = json.dumps(description, indent=1).encode()
    if len(raw) > _MAX_BYTES:
        raise InvalidOptionError(
            f"the description of a sweep in a folder takes {_MAX_BYTES:,} bytes at most, got {len(raw):,}: give ranges "
            "instead of long lists of values, or fewer GEMMs"
        )
    return raw


def read_description(folder: Path) -> dict[str, Any]:
    """Return what the sweep in a folder is.

    Raises:
        GemmEvalError: there is none, or it cannot be read, is damaged, or of another version.
    """
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
    """Check that everything in a description is what `describe` says of some sweep.

    Raises:
        GemmEvalError: it is not.
    """
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
