"""Timings of multi-core chips: a CSV for each chip, and a meta file that says how the chip was used for its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemm_eval.arch import data_root, read_yaml
from gemm_eval.dtypes import parse_scheme
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.measure import read_frame
from gemm_eval.validation.fit import sha256_of
from gemm_eval.validation.tables import Mask, Table, measured_root
from gemm_eval.words import refusal, shown

_COLUMNS = ["dtype", "M", "K", "N", "latency_us"]


class _Set(BaseModel):
    """Use of the chip for some of the rows."""

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
    """The meta file of a table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Field(min_length=1)]
    licence: Annotated[str, Field(min_length=1)]
    what: str = ""
    sets: Mapping[str, _Set] = {}


@dataclass(frozen=True, eq=False)
class TimingSet(Table):
    """Rows (dtype, M, K, N, latency_us) for which the chip was used in the same way; see `_Set`."""

    name: str
    policy: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    is_fitted: bool = True
    timer_us: float = 0.0
    path: Path = Path()

    @property
    def without_timer(self) -> Self:
        """The same rows without what the way of timing adds."""
        frame = self.frame.assign(latency_us=self.measured_us - self.timer_us)
        return replace(self, frame=frame, timer_us=0.0)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.frame["N"].tolist(), self.frame["K"].tolist(), strict=True))


class ChipTimings(NamedTuple):
    """The timings of a chip in one file: its sets, whose they are, and the hash of the file."""

    chip: str
    sets: tuple[TimingSet, ...]
    source: str
    sha256: str


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
        path = measured_root(chip) / "gemm.csv"
        if not path.is_file():
            raise InvalidOptionError(f"{refusal('chip with timings', chip, chips_with_timings())}: give --data FILE")
    frame = read_frame(path, ("chip", *_COLUMNS))
    if others := sorted(set(frame["chip"]) - {chip}):
        raise InvalidInputError(f"{path}: these are timings of {', '.join(map(shown, others))}, not of {chip}")
    for dtype in frame["dtype"].unique():
        parse_scheme(dtype)
    numbers = frame[_COLUMNS[1:]].to_numpy(np.float64)
    if not (np.isfinite(numbers).all() and (numbers > 0.0).all()):
        raise InvalidInputError(f"{path}: sizes and latencies must be numbers above 0")
    meta = _read_meta(path.with_name(f"{path.stem}.meta.yaml"))
    if meta is None and (own := _read_meta(measured_root(chip) / "gemm.meta.yaml")):  # of rows that may not come along
        texts = [of_set.where for of_set in own.sets.values() if of_set.where]
        meta = own if any(_has_text(frame, where).any() for where in texts) else None
    source = meta.source if meta else path.name
    if meta is None and "source" in frame:  # what comes before the first bracket
        source = ", ".join(sorted({str(text).split("(")[0].strip() for text in frame["source"].unique()}))[:400]
    return ChipTimings(chip, _sets_of(frame, meta, path), source, sha256_of(path))


def _read_meta(path: Path) -> _Meta | None:
    if not path.is_file():
        return None
    try:
        return _Meta.model_validate(read_yaml(path))
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {error}") from None


def _has_text(frame: pd.DataFrame, where: Mapping[str, str]) -> Mask:
    """Return whether each row has all of this text in these columns."""
    has = np.ones(len(frame), bool)
    for column, text in where.items():
        has &= frame[column].astype(str).str.contains(text, regex=False).to_numpy() if column in frame else False
    return has


def _sets_of(frame: pd.DataFrame, meta: _Meta | None, path: Path) -> tuple[TimingSet, ...]:
    if meta is None or not meta.sets:
        return (TimingSet(frame[_COLUMNS].reset_index(drop=True), "all", path=path),)
    texts = {name: of_set.where for name, of_set in meta.sets.items() if of_set.where}
    expected = list(meta.sets)
    set_of = frame["set"] if "set" in frame and not texts else pd.Series(None, frame.index, dtype=object)
    if texts:  # of several sets whose text a row has, the first; of none, the first set without text
        set_of[:] = next((name for name in meta.sets if name not in texts), None)
        for name in reversed(texts):
            set_of[_has_text(frame, texts[name])] = name
        expected = [name for name in expected if (set_of == name).any()]
    names = list(set_of.unique())
    if set(names) != set(expected):
        raise InvalidInputError(f"{path}: sets {', '.join(map(str, names))}, its meta file has {', '.join(meta.sets)}")
    return tuple(
        TimingSet(
            frame.loc[set_of == name, _COLUMNS].reset_index(drop=True), name, path=path,
            **meta.sets[name].model_dump(include={"policy", "changes", "is_fitted", "timer_us"}),
        )
        for name in expected
    )  # fmt: skip
