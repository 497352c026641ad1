"""Timings of multi-core chips: tables of GEMMs, and how the chip was used for each of their sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemm_eval.arch import data_root, read_yaml
from gemm_eval.dtypes import parse_scheme
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.words import refusal, shown

__all__ = ["ChipTimings", "TimingSet", "chips_with_timings", "committed_table", "read_chip_timings"]

_COLUMNS = ("chip", "dtype", "M", "K", "N", "latency_us")
_SIZES = ("M", "K", "N")
_ALL_ROWS = "all"


class _Set(BaseModel):
    """How the chip was used for some of the rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str = ""
    where: Mapping[str, str] = Field(default={}, description="columns, and text in them, that tell its rows")
    policy: str | None = None
    changes: Mapping[str, Any] = {}
    timer_us: Annotated[float, Field(ge=0.0)] = Field(
        default=0.0, description="what the way of timing adds to each latency; timer_why says how that is known"
    )
    timer_why: str = ""
    is_fitted: bool = Field(default=True, description="False: rows that nothing can be fitted on, reported alone")


class _Meta(BaseModel):
    """What stands beside a table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Field(min_length=1)]
    licence: Annotated[str, Field(min_length=1)]
    what: str = ""
    sets: Mapping[str, _Set] = {}


class TimingSet(NamedTuple):
    """Rows for which the chip was used in the same way.

    Attributes:
        name: of the set.
        frame: columns dtype, M, K, N, latency_us.
        policy: of the evaluator; None: the chip's default.
        changes: fields of the spec that were otherwise.
        is_fitted: whether fits take them.
        timer_us: what the way of timing added to each latency; predictions of latencies contain it.
    """

    name: str
    frame: pd.DataFrame
    policy: str | None = None
    changes: Mapping[str, Any] = {}
    is_fitted: bool = True
    timer_us: float = 0.0

    def select(self, mask: npt.NDArray[np.bool_]) -> TimingSet:
        """Return some of the rows."""
        return self._replace(frame=self.frame[mask].reset_index(drop=True))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(N, K) of each row."""
        return list(zip(self.frame["N"].tolist(), self.frame["K"].tolist(), strict=True))

    @property
    def measured_us(self) -> npt.NDArray[np.float64]:
        """The latency of each row."""
        return self.frame["latency_us"].to_numpy(np.float64)


class ChipTimings(NamedTuple):
    """The timings of a chip in one file.

    Attributes:
        chip: arch name.
        sets: of the file.
        source: whose they are.
        sha256: of the file.
    """

    chip: str
    sets: tuple[TimingSet, ...]
    source: str
    sha256: str


def committed_table(chip: str) -> Path:
    """Where the timings of a chip lie that come with the library, if there are any."""
    return data_root() / "measured" / chip / "gemm.csv"


def chips_with_timings() -> list[str]:
    """Return the multi-core chips whose timings come with the library."""
    return sorted(path.parent.name for path in (data_root() / "measured").glob("*/gemm.csv"))


def read_chip_timings(chip: str, path: Path | None = None) -> ChipTimings:
    """Read timings of a chip: those that come with the library, or a CSV of the same columns.

    The columns are chip, dtype (as `evaluate` takes it), M, K, N, latency_us and, where there are sets, set; others are
    left alone. ``<name>.meta.yaml`` beside it says whose the timings are and how the chip was used for each set. It can
    also tell sets by the text in other columns (``where``). The library has such a file of a table that may not come
    with it: it counts for a table with such rows that has no meta file beside it.

    Raises:
        InvalidOptionError: no timings of this chip come with the library.
        InvalidInputError: the table, or its meta file, is not of that form.
    """
    if path is None:
        path = committed_table(chip)
        if not path.is_file():
            known = chips_with_timings()
            raise InvalidOptionError(f"{refusal('chip with timings', chip, known)}: give --data FILE")
    try:
        frame = pd.read_csv(path)
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path}: {error}") from None
    if missing := [name for name in _COLUMNS if name not in frame]:
        raise InvalidInputError(f"{path}: columns {', '.join(missing)} are missing")
    if others := sorted(set(frame["chip"]) - {chip}):
        raise InvalidInputError(f"{path}: these are timings of {', '.join(map(shown, others))}, not of {chip}")
    for dtype in frame["dtype"].unique():
        parse_scheme(dtype)
    numbers = frame[[*_SIZES, "latency_us"]].to_numpy(np.float64)
    if not (np.isfinite(numbers).all() and (numbers > 0.0).all()):
        raise InvalidInputError(f"{path}: sizes and latencies must be numbers above 0")
    meta = _read_meta(path.with_name(f"{path.stem}.meta.yaml")) or _meta_by_columns(chip, frame)
    sets = _sets_of(frame, meta, path)
    source = meta.source if meta else _source_of(frame, path)
    return ChipTimings(chip, sets, source, hashlib.sha256(raw).hexdigest())


def _read_meta(path: Path) -> _Meta | None:
    if not path.is_file():
        return None
    try:
        return _Meta.model_validate(read_yaml(path))
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _meta_by_columns(chip: str, frame: pd.DataFrame) -> _Meta | None:
    """Return what the library knows of rows that it does not have, if this table has some that it tells by columns."""
    meta = _read_meta(committed_table(chip).with_name("gemm.meta.yaml"))
    told = [of for of in meta.sets.values() if of.where] if meta else []
    return meta if any(_has_text(frame, of.where).any() for of in told) else None


def _has_text(frame: pd.DataFrame, where: Mapping[str, str]) -> npt.NDArray[np.bool_]:
    """Return whether each row has all of this text in these columns."""
    has = np.ones(len(frame), bool)
    for column, text in where.items():
        has &= frame[column].astype(str).str.contains(text, regex=False).to_numpy() if column in frame else False
    return has


def _names_of(frame: pd.DataFrame, sets: Mapping[str, _Set]) -> pd.Series:
    """Return the set of each row: of those that the text in its columns tells, the first, else one without `where`."""
    others = [name for name, of in sets.items() if not of.where]
    found = pd.Series(others[0] if others else None, frame.index, dtype=object)
    for name, of in reversed(list(sets.items())):
        if of.where:
            found[_has_text(frame, of.where)] = name
    return found


def _sets_of(frame: pd.DataFrame, meta: _Meta | None, path: Path) -> tuple[TimingSet, ...]:
    columns = ["dtype", *_SIZES, "latency_us"]
    if meta is None or not meta.sets:
        return (TimingSet(_ALL_ROWS, frame[columns].reset_index(drop=True)),)
    if any(of.where for of in meta.sets.values()):
        set_of = _names_of(frame, meta.sets)
        known = [name for name in meta.sets if (set_of == name).any()]
    else:
        set_of = frame["set"] if "set" in frame else pd.Series(None, frame.index, dtype=object)
        known = list(meta.sets)
    names = list(set_of.unique())
    if set(names) != set(known):
        raise InvalidInputError(f"{path}: sets {', '.join(map(str, names))}, its meta file has {', '.join(meta.sets)}")
    return tuple(
        TimingSet(
            name, frame.loc[set_of == name, columns].reset_index(drop=True), of.policy, of.changes, of.is_fitted,
            of.timer_us,
        )
        for name, of in meta.sets.items()
        if name in known
    )  # fmt: skip


def _source_of(frame: pd.DataFrame, path: Path) -> str:
    """Say whose timings these are: of the column source, what comes before the first bracket."""
    if "source" not in frame:
        return path.name
    said = {str(text).split("(")[0].strip() for text in frame["source"].unique()}
    return ", ".join(sorted(said))[:400]
