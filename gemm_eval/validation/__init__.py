"""Predictions of GEMM latency against timings: data sets, folds, baselines, errors, reports, calibration.

Needs pandas, pyarrow and scipy (``pip install 'gemm_eval[calibrate]'``), and says so where one is missing; plots need
matplotlib (``[plot]``). Importing this package is cheap: what it exports is loaded when it is first used.

`Timings` come from `tables`, or from the reader of a model of single configs. `fit` holds pairs (N, K) out and has the
one least-squares search; `predictors` alone knows coefficients and packed rows; `metrics` measures errors, `choice` the
loss of the chosen config, `ablation` what each term buys. `comparison` (a library's own choices) and `studies` (single
configs) put these together; `report`, `study_tables` and `plots` write. Other subjects have an `exam`, in `subjects`.
"""

from typing import TYPE_CHECKING

from gemm_eval.extras import check_extra
from gemm_eval.lazy import lazy_names

check_extra("comparing with timings", "calibrate", "pandas", "pyarrow", "scipy")  # for all of its modules

if TYPE_CHECKING:
    from gemm_eval.validation.ablation import Ablation, run_ablation
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
    from gemm_eval.validation.fit import assign_folds, cross_fit
    from gemm_eval.validation.metrics import Metrics, Score, make_score, regime_of, score, worst_rows
    from gemm_eval.validation.plots import (
        plot_error_by_rows,
        plot_predicted,
        save_figure,
        save_study_plots,
    )
    from gemm_eval.validation.predictors.corrections import calibrate_correction, list_training, refit_intervals
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
    from gemm_eval.validation.predictors.w4a16 import W4A16Model, calibrate_w4a16, list_w4a16_tables, read_w4a16_timings
    from gemm_eval.validation.report import errors_frame, errors_table, report_document, report_table, worst_table
    from gemm_eval.validation.studies import Study, find_w4a16_tables, study_triton, study_w4a16
    from gemm_eval.validation.study_tables import (
        ablation_document,
        ablation_report,
        study_document,
        study_frame,
        study_report,
    )
    from gemm_eval.validation.tables import (
        TABLE_SUFFIXES,
        find_timings,
        list_timings,
        read_timings,
    )
    from gemm_eval.validation.timings import Timings

__all__ = [
    "CLEAR_FRAC", "CONFIG_COLUMNS", "CORRECTED", "GEMM_COLUMNS", "INTERPOLATION", "PHYSICS", "ROOFLINE",
    "TABLE_SUFFIXES", "TIMING_COLUMNS", "Ablation", "GpuLine", "KernelKey", "Metrics", "Score", "Study",
    "Timings", "TritonModel", "W4A16Model", "ablation_document", "ablation_report", "assign_folds", "calibrate",
    "calibrate_correction", "calibrate_quantization", "calibrate_triton", "calibrate_w4a16", "calibration_out",
    "compare", "compare_crossovers", "compare_gpus", "cross_fit", "describe_held_out", "errors_frame", "errors_table",
    "find_timings", "find_w4a16_tables", "first_rows", "is_calibrated_on", "is_default_training",
    "is_triton_calibrated", "list_timings", "list_training", "list_w4a16_tables", "make_score",
    "measure_loss", "measured_speedups", "model_predictor", "order_by", "plot_crossover", "plot_error_by_rows",
    "plot_predicted", "predict_speedups", "random_choice", "ranked_choice", "read_timings",
    "read_triton_timings", "read_w4a16_timings", "refit_intervals", "regime_of", "report_document", "report_table",
    "run_ablation", "save_figure", "save_study_plots", "score", "sign_shares", "static_points", "study_document",
    "study_frame", "study_report", "study_triton", "study_w4a16", "triton_table", "worst_rows", "worst_table",
    "write_codes",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
