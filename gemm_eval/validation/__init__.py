"""Predictions of GEMM latency against timings: data sets, folds, baselines, metrics, reports, calibration.

Needs pandas, pyarrow and scipy (``pip install 'gemm_eval[calibrate]'``), and says so where one is missing; plots need
matplotlib (``[plot]``). Importing this package is cheap: what it exports is loaded when it is first used.

GEMMs have one pipeline. `Timings` come from `tables` or from the reader of a predictor; `fit` holds pairs (N, K) out
and has the one least-squares search; `predictors` has a module for each kind (dense, w4a16, triton, nvidia), which
alone knows coefficients and how rows are packed; `metrics` says how wrong, `choice` how good the chosen config is,
`ablation` what each term buys. `comparison` (a library's own choices) and `studies` (single configs) put these
together; `report`, `study_tables` and `plots` write. What else is predicted has an `exam`, a module of `subjects` each.
"""

from typing import TYPE_CHECKING

from gemm_eval.extras import check_extra
from gemm_eval.lazy import lazy_names

check_extra("comparing with timings", "calibrate", "pandas", "pyarrow", "scipy")  # for all of its modules

if TYPE_CHECKING:
    from gemm_eval.validation.ablation import Ablated, Ablation, Removed, ablate, run_ablation
    from gemm_eval.validation.baselines import FittedRoofline, NaiveRoofline
    from gemm_eval.validation.choice import (
        first_rows,
        measure_loss,
        order_by,
        random_choice,
        ranked_choice,
        static_points,
    )
    from gemm_eval.validation.comparison import (
        CORRECTED,
        INTERPOLATION,
        PHYSICS,
        ROOFLINE,
        Compared,
        GpuLine,
        compare,
        compare_gpus,
        is_calibrated_on,
        is_default_training,
    )
    from gemm_eval.validation.crossover import (
        CLEAR_FRAC,
        compare_crossovers,
        measured_speedups,
        plot_crossover,
        predict_speedups,
        sign_shares,
    )
    from gemm_eval.validation.exam import ALL_GPUS
    from gemm_eval.validation.fit import assign_folds, cross_fit
    from gemm_eval.validation.metrics import Metrics, Score, make_score, regime_of, score, score_held_out, worst_rows
    from gemm_eval.validation.plots import plot_error_by_rows, plot_latency_curves, plot_predicted, save_figure
    from gemm_eval.validation.predictors.corrections import FittedCorrection, calibrate_correction, refit_intervals
    from gemm_eval.validation.predictors.dense import (
        calibrate,
        calibrate_quantization,
        calibration_out,
        describe_held_out,
        model_predictor,
    )
    from gemm_eval.validation.predictors.triton import (
        CONFIG_COLUMNS,
        GEMM_COLUMNS,
        TIMING_COLUMNS,
        KernelKey,
        TritonModel,
        calibrate_triton,
        is_triton_calibrated,
        read_triton_timings,
        triton_table,
        write_codes,
    )
    from gemm_eval.validation.predictors.w4a16 import (
        W4A16Model,
        calibrate_w4a16,
        has_all_configs,
        list_w4a16_tables,
        read_w4a16_timings,
    )
    from gemm_eval.validation.report import (
        ablation_document,
        ablation_report,
        errors_frame,
        errors_table,
        report_document,
        report_table,
        study_document,
        study_frame,
        worst_table,
    )
    from gemm_eval.validation.studies import Study, find_w4a16_tables, study_triton, study_w4a16
    from gemm_eval.validation.study_tables import save_study_plots, study_report
    from gemm_eval.validation.tables import (
        TABLE_SUFFIXES,
        find_timings,
        list_correction_timings,
        list_timings,
        read_timings,
    )
    from gemm_eval.validation.timings import Timings

__all__ = [
    "ALL_GPUS", "CLEAR_FRAC", "CONFIG_COLUMNS", "CORRECTED", "GEMM_COLUMNS", "INTERPOLATION", "PHYSICS",
    "ROOFLINE", "TABLE_SUFFIXES", "TIMING_COLUMNS", "Ablated", "Ablation", "Compared", "FittedCorrection",
    "FittedRoofline", "GpuLine", "KernelKey", "Metrics", "NaiveRoofline", "Removed", "Score", "Study", "Timings",
    "TritonModel", "W4A16Model", "ablate", "ablation_document", "ablation_report", "assign_folds", "calibrate",
    "calibrate_correction", "calibrate_quantization", "calibrate_triton", "calibrate_w4a16", "calibration_out",
    "compare", "compare_crossovers", "compare_gpus", "cross_fit", "describe_held_out", "errors_frame",
    "errors_table", "find_timings", "find_w4a16_tables", "first_rows", "has_all_configs", "is_calibrated_on",
    "is_default_training", "is_triton_calibrated", "list_correction_timings", "list_timings",
    "list_w4a16_tables", "make_score", "measure_loss", "measured_speedups", "model_predictor", "order_by",
    "plot_crossover", "plot_error_by_rows", "plot_latency_curves", "plot_predicted", "predict_speedups",
    "random_choice", "ranked_choice", "read_timings", "read_triton_timings", "read_w4a16_timings", "refit_intervals",
    "regime_of", "report_document", "report_table", "run_ablation", "save_figure", "save_study_plots", "score",
    "score_held_out", "sign_shares", "static_points", "study_document", "study_frame", "study_report", "study_triton",
    "study_w4a16", "triton_table", "worst_rows", "worst_table", "write_codes",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
