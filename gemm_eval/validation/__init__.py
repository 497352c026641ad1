"""Predictions of latency against timings: tables, folds, baselines, errors, reports, calibration.

Needs pandas, pyarrow and scipy (``pip install 'gemm_eval[calibrate]'``), and says so where one is missing. Importing
this package is cheap: what it exports is loaded when it is first used.

A predicted subject is an `exam.Exam`, in `subjects`, the only modules that know models. `tables` reads `Timings` of
GEMMs, `fit` holds rows out and has the one least-squares search, `metrics` measures and prints errors, `studies` the
loss of the config that is chosen.
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names
from gemm_eval.words import check_extra

check_extra("comparing with timings", "calibrate", "pandas", "pyarrow", "scipy")  # for all of its modules

if TYPE_CHECKING:
    from gemm_eval.validation.crossover import (
        CLEAR_FRAC,
        compare_crossovers,
        measured_speedups,
        plot_crossover,
        predict_speedups,
        sign_shares,
    )
    from gemm_eval.validation.fit import assign_folds
    from gemm_eval.validation.metrics import Metrics, Score, make_score, regime_of, report_table, worst_rows
    from gemm_eval.validation.studies import (
        first_rows,
        measure_loss,
        order_by,
        random_choice,
        ranked_choice,
        static_points,
    )
    from gemm_eval.validation.subjects.chip_timings import read_chip_timings
    from gemm_eval.validation.subjects.chips import score_chip
    from gemm_eval.validation.subjects.gemms import compare, gpus_with_timings
    from gemm_eval.validation.subjects.triton import (
        CONFIG_COLUMNS,
        GEMM_COLUMNS,
        TIMING_COLUMNS,
        KernelKey,
        TritonModel,
        read_triton_timings,
        triton_table,
        write_codes,
    )
    from gemm_eval.validation.subjects.w4a16 import W4A16Model, list_w4a16_tables, read_w4a16_timings
    from gemm_eval.validation.tables import Timings, find_timings, read_timings

__all__ = [
    "CLEAR_FRAC", "CONFIG_COLUMNS", "GEMM_COLUMNS", "TIMING_COLUMNS", "KernelKey", "Metrics", "Score", "Timings",
    "TritonModel", "W4A16Model", "assign_folds", "compare", "compare_crossovers", "find_timings", "first_rows",
    "gpus_with_timings", "list_w4a16_tables", "make_score", "measure_loss", "measured_speedups", "order_by",
    "plot_crossover", "predict_speedups", "random_choice", "ranked_choice", "read_chip_timings", "read_timings",
    "read_triton_timings", "read_w4a16_timings", "regime_of", "report_table", "score_chip",
    "sign_shares", "static_points", "triton_table", "worst_rows", "write_codes",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
