"""Calibrations of multi-core chips: numbers of a spec that were fitted on timings, in a file of their own.

`gemm-eval calibrate multicore` writes ``arch/calibration/<chip>/multicore.yaml``; `load_arch` lays it over the YAML.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from gemm_eval.arch.common import Frozen, Text
from gemm_eval.arch.paths import data_root
from gemm_eval.arch.yaml import read_yaml
from gemm_eval.errors import ArchValidationError

ALL_TYPES = "*"
"""In the path of a coefficient: of every type that the matrix unit takes."""


class MulticoreErrors(Frozen):
    """Errors on a set of timings, each row by a fit on the other (N, K) pairs."""

    set: str = Field(description="which rows")
    num_rows: int = Field(description="timings of the set")
    mape_percent: float = Field(description="mean of the errors without their signs")
    median_percent: float = Field(description="median of the same")
    p90_percent: float = Field(description="nine in ten of them are below")
    bias_percent: float = Field(description="mean of the errors with their signs; above 0: predicted too slow")
    kendall_tau: float | None = Field(description="how alike the orders are; null where it is undefined")
    naive_mape_percent: float = Field(description="of the roofline of the data sheet")
    roofline_mape_percent: float = Field(description="of a roofline with three fitted constants, held out likewise")


class MulticoreCalibration(Frozen):
    """Calibration of a chip, as `gemm-eval calibrate multicore` writes it."""

    chip: str = Field(description="the preset that it is of")
    model_version: str = Field(description="version of the cost model")
    code_version: str = Field(description="version of the package")
    date: str = Field(description="when it was fitted, YYYY-MM-DD")
    data: Text = Field(description="whose timings, and where they are")
    sha256: str = Field(description="of the timings")
    folds: str = Field(description="how rows were held out for the errors")
    coefficients: Mapping[str, float] = Field(description="path in the spec -> value, in the unit of the field")
    errors: Annotated[
        tuple[MulticoreErrors, ...], Field(min_length=1, strict=False, description="held out, one for each set of rows")
    ]

    @property
    def words(self) -> str:
        """Sentence about it for a spec."""
        return f"{self.data} ({self.date})"


def calibration_file(chip: str) -> Path:
    """Return the path of a chip's calibration, if there is one."""
    return data_root() / "calibration" / chip / "multicore.yaml"


@cache
def held_out_p90_frac(chip: str) -> float | None:
    """Return the 90th percentile of a chip's held-out errors, over all rows; None: it is not calibrated."""
    path = calibration_file(chip)
    if not path.is_file():
        return None
    errors = MulticoreCalibration.model_validate(read_yaml(path)).errors
    return max(item.p90_percent for item in errors) / 100.0


def with_calibration(data: dict[str, Any], chip: str) -> dict[str, Any]:
    """Return the content of a chip's YAML with its calibration laid over it, if there is one.

    Raises:
        ArchValidationError: the calibration is malformed, or of another chip.
    """
    path = calibration_file(chip)
    if not path.is_file():
        return data
    try:
        calibration = MulticoreCalibration.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ArchValidationError(f"{path}: {error}") from None
    if calibration.chip != chip:
        raise ArchValidationError(f"{path}: this is a calibration of {calibration.chip}")
    entry = {"kind": "fitted", "source": f"calibrate multicore: {calibration.words}"}
    fitted = dict.fromkeys(calibration.coefficients, entry)
    data = place_values(data, calibration.coefficients)
    data["provenance"] = data.get("provenance", {}) | fitted
    return data | {"calibration": calibration.words}


def place_values(data: Mapping[str, Any], coefficients: Mapping[str, float]) -> dict[str, Any]:
    """Return data of a spec with other values at these paths, such as ``launch_us`` or ``rules.changes.launch_us``."""
    placed: dict[str, Any] = copy.deepcopy(_plain(data))
    for path, value in coefficients.items():
        *tables, name = path.split(".")
        table = placed
        for key in tables:
            table = table.setdefault(key, {})
        names = list(placed["cube_steps_per_cycle"]) if name == ALL_TYPES else [name]
        table.update(dict.fromkeys(names, value))
    return placed


def _plain(value: Any) -> Any:
    """Turn frozen tables into dicts."""
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
