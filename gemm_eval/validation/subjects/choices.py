"""The choice among kernels of AMD's libraries: GEMMs that several kernels of a tuner ran on one date.

``arch/measured/<gpu>/aiter/choice.parquet`` has a row for each kernel: sizes, type, rows, columns and k-step of its
tile, parts of K (0: as many as the kernel likes), version of the library (`Library.versions`), date, time, and the
cycles that AMD's origami predicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidMappingError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.validation.report import rows_table
from gemm_eval.validation.tables import measured_root

_GEMM = ["M", "N", "K", "date"]
_DTYPES = {"fp8_row": "fp8"}
_LEAST_STEP, _MOST_STEP = 64, 256  # bytes of a k-step that the families have
_MOST_STAGES = 4
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16)  # of K, where a kernel cuts it as it likes


class Choice(NamedTuple):
    """Mean time of the first kernel of a ranking over the fastest kernel of the GEMM, minus 1.

    Attributes:
        model_frac: by this model; `origami_frac`: by origami, whose own way to split K its prediction has.
        any_frac: by any kernel, each as likely.
    """

    dtype: str
    num_gemms: int
    model_frac: float
    origami_frac: float
    any_frac: float


def compare_choices(arch: GpuSpec) -> Iterator[Choice]:
    """Yield the choice among kernels by type; nothing where no table of a GPU tells several."""
    path = measured_root(arch.name) / "aiter" / "choice.parquet"
    if not path.is_file():
        return
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    for dtype, of_type in pd.read_parquet(path).groupby("type", observed=True):
        model_us = [_predict(evaluator, str(dtype), row) for row in of_type.itertuples(index=False)]
        rows = of_type.assign(model_us=model_us)[np.isfinite(model_us)]
        times = rows.groupby(_GEMM, observed=True)["latency_us"]
        rows = rows.assign(loss=rows["latency_us"] / times.transform("min") - 1.0)[times.transform("size") > 1]
        of_model, of_origami = (_mean_of_firsts(rows, by) for by in ("model_us", "origami_cycles"))
        by_gemm = rows.groupby(_GEMM, observed=True)["loss"].mean()
        yield Choice(str(dtype), len(by_gemm), of_model, of_origami, float(by_gemm.mean()))


def _mean_of_firsts(rows: pd.DataFrame, by: str) -> float:
    """Return the mean loss over GEMMs of the kernel that is first by a column; of several, each is as likely."""
    least = rows.groupby(_GEMM, observed=True)[by].transform("min")
    return float(rows[rows[by] == least].groupby(_GEMM, observed=True)["loss"].mean().mean())


def choices_table(choices: list[Choice]) -> Any:
    """Return the choices as a table."""
    columns = {"type": "", "GEMMs": ",", "gemm_eval": "+.1%", "origami": "+.1%", "any": "+.1%"}
    return rows_table(columns, choices, "choice among kernels of one date: mean time over the fastest's", 1)


def _predict(evaluator: GEMMEvaluator, dtype: str, row: Any) -> float:
    """Return the time of a row's kernel in microseconds; inf where the model has no such kernel."""
    library = f"aiter/{row.version}" if row.version else None
    best = evaluator.evaluate(1, row.M, row.K, row.N, dtype=_DTYPES.get(dtype, dtype), library=library)
    assert isinstance(best.mapping, KernelConfig)
    bits = best.problem.types.a.dtype.bits
    step = min(max(row.cta_k * bits // 8, _LEAST_STEP), _MOST_STEP)
    times = []
    for split_k in (row.split_k,) if row.split_k else _SPLITS:
        work = Decomposition.SPLIT_K if split_k > 1 else Decomposition.DATA_PARALLEL
        for step_bytes, stages in product((step, step // 2), range(_MOST_STAGES, 1, -1)):
            config = best.mapping._replace(
                cta_m=row.cta_m, cta_n=row.cta_n, cta_k=step_bytes * 8 // bits, num_stages=stages, decomposition=work,
                split_k=split_k,
            )  # fmt: skip
            with suppress(InvalidMappingError):
                times.append(evaluator.evaluate_mapping(best.problem, config, library=library).latency_us)
                break
    return min(times, default=np.inf)
