"""Predictions of GEMM latency against timings: data sets, folds, baselines, metrics, reports, calibration.

Needs pandas, pyarrow and scipy (``pip install 'gemm_eval[calibrate]'``), and says so where one is missing; plots need
matplotlib (``[plot]``). Import what you use from its modules: `timings` and `datasets` (measured timings), `folds`,
`predictors` (what predicts), `baselines`, `metrics` (how wrong), `scoring` (cross-validation), `fit` (calibration),
`comparison` (the model beside its baselines), `report` and `plots`; for our W4A16 kernels `kernel_timings`,
`kernel_fit`, `kernel_scores`, `kernel_choice`, `kernel_ablation`, `kernel_study` and `kernel_report`, and `crossover`
(where they beat dense GEMMs).
"""

from gemm_eval._extras import check_extra

check_extra("comparing with timings", "calibrate", "pandas", "pyarrow", "scipy")  # for all of its modules
