"""The fit of our W4A16 families: it finds what was planted, sees nothing held out, and refuses what it cannot use."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu import pack_gpu
from gemm_eval.models.gpu.calibration import load_calibration
from gemm_eval.models.gpu.families import FAMILIES, default_coefficients
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES, W4A16_SETS
from gemm_eval.search.gpu import evaluate_config, find_best_config
from gemm_eval.validation.fit import MIN_ROWS, cross_fit
from gemm_eval.validation.subjects import w4a16
from gemm_eval.validation.tables import Floats, Timings, measured_root
from gemm_eval.workload import GemmProblem, RunOptions
from tests.validation.inputs import H200, with_latency

FOLDER = measured_root("h200-sxm") / "w4a16"
GEMV, GEMV_MMA, SM80, SM90, _ = W4A16_FAMILIES
NOISE = 0.01
NUM_ROWS = 600
# away from the defaults, by a part of the way to the ends of the ranges
PLANTED = {
    family: {
        item.name: item.default + (0.2 * (item.high - item.default) if place % 2 else 0.3 * (item.low - item.default))
        for place, item in enumerate(FAMILIES[family].coefficients)
    }
    for family in W4A16_SETS
}


@cache
def real() -> Timings:
    return w4a16.read_w4a16_timings(H200, [FOLDER / "fp16-wide.parquet", FOLDER / "fp16-wide-streaming.parquet"])


@cache
def rows_in(family: str, num_rows: int = NUM_ROWS) -> Timings:
    found = real().select(real().of_group(family))
    return found.select(np.arange(len(found)) % max(1, len(found) // num_rows) == 0)


@cache
def planted(family: str, noise: float = NOISE) -> Timings:
    """Rows as they were measured, with the model's times."""
    rows = rows_in(family)
    exact = w4a16.W4A16Model(H200, PLANTED).predict(rows)
    return with_latency(rows, exact * np.exp(np.random.default_rng(0).normal(0.0, noise, len(rows))))


def held_out(rows: Timings, num_folds: int) -> Floats:
    return cross_fit(w4a16.W4A16Model(H200), [rows], num_folds).predict(rows)


def error(timings: Timings, predicted_us: Floats) -> float:
    return float(np.abs(predicted_us / timings.measured_us - 1.0).mean())


@pytest.mark.parametrize(
    ("family", "found"),
    [
        (GEMV_MMA, {"cta_cycles": 0.05, "issue": 0.05, "dram_frac": 0.03, "cut_us": 0.1}),
        (SM80, {"issue": 0.02, "serial_cycles": 0.08, "part_write_bytes_per_cycle": 0.05, "cut_us": 0.1}),
        (SM90, {"issue": 0.02, "pingpong_issue": 0.03, "wgmma_frac": 0.02, "producer_cycles": 0.05,
                "outside_rows_per_cycle": 0.05}),
    ],
)  # fmt: skip
def test_a_fit_finds_what_was_planted(family: str, found: dict[str, float]) -> None:
    rows, exact = planted(family), planted(family, 0.0)
    fitted = w4a16.W4A16Model(H200, families=(family,)).fit(rows)
    values = fitted.values
    assert error(exact, fitted.predict(exact)) < 0.004
    assert error(exact, w4a16.W4A16Model(H200).predict(exact)) > 0.05
    for name, tolerance in found.items():
        assert values[name] == pytest.approx(PLANTED[family][name], rel=tolerance), name
    assert set(values) == set(default_coefficients(family))
    assert all(item.low <= values[item.name] <= item.high for item in FAMILIES[family].coefficients)


def test_held_out_rows_are_predicted_as_well_as_the_noise_lets() -> None:
    rows = planted(GEMV_MMA)
    expected = NOISE * (2.0 / np.pi) ** 0.5  # mean of a normal deviation's size
    assert 0.8 * expected < error(rows, held_out(rows, 3)) < 1.4 * expected


def test_rows_far_from_the_best_of_many_count_less() -> None:
    rows = rows_in(SM90)
    weights = w4a16.W4A16Model(H200).row_weights(rows)
    ratio, num = rows.measured_us / rows.best_us, np.bincount(rows.gemm)[rows.gemm]
    assert weights.mean() == pytest.approx(1.0)
    assert (ratio >= 1).all()
    alike = num == num[np.argmax(num)]
    assert (weights[alike & (ratio <= 2)] >= weights[alike].max() * (1 - 1e-12)).all()
    far = np.flatnonzero(alike & (ratio > 2))
    assert far.size
    assert (weights[far] < weights[alike].max()).all()


def test_tables_that_are_held_back_are_never_fitted_on() -> None:
    fitted, held_back = w4a16.list_w4a16_tables("h200-sxm"), w4a16.list_w4a16_tables("h200-sxm", is_held_back=True)
    assert {path.stem for path in fitted} == {"fp16", "fp16-wide", "fp16-streaming", "fp16-wide-streaming"}
    assert {path.stem for path in held_back} >= {"fp16-blind-2", "fp16-full"}
    assert all("blind" in path.stem or path.stem.startswith("fp16-full") for path in held_back)
    assert w4a16.list_w4a16_tables("l40s") == w4a16.list_w4a16_tables("no-such-gpu") == []
    digests = {
        figures.data
        for path in sorted((measured_root("h200-sxm").parents[1] / "calibration" / "h200-sxm").glob("gemm-eval-*.yaml"))
        for figures in load_calibration(path).errors
    }
    assert digests == {f"w4a16/{path.stem}" for path in fitted} | {"w4a16-grouped/fp16", "w4a8/fp8"}


def test_a_row_is_evaluated_at_the_config_that_ran() -> None:
    """And to the bit as a user's own question would be."""
    timings = real()
    some = timings.select(np.arange(len(timings)) % 601 == 0)
    predicted_us = w4a16.W4A16Model.as_it_is(H200)[0].predict(some)
    for place, row in enumerate(some.frame.to_dict("records")):
        config = KernelConfig(
            row["family"], *(row[name] for name in KernelConfig._fields[1:8]), Schedule[row["schedule"].upper()],
            Decomposition[row["decomposition"].upper()], row["split_k"], RasterOrder[row["raster_order"].upper()],
            row["raster_swizzle"],
        )  # fmt: skip
        types = w4a16.types_of(row["input_dtype"], row["mode"], row["group_size"])
        problem = GemmProblem(
            1, row["M"], row["K"], row["N"], types.input_dtype, types.weight_dtype, group_size=types.group_size
        )
        packed = pack_gpu(H200, problem.types, RunOptions("gemm-eval", row["l2"], row["clock"]))
        assert evaluate_config(H200, problem, packed, config)["latency_us"][0] == predicted_us[place]


def test_a_corrected_answer_among_all_configs_is_that_of_users() -> None:
    timings = w4a16.read_w4a16_timings(H200, [FOLDER / "fp16-full.parquet"])
    predicted_us = w4a16.CorrectedModel.as_it_is(H200, timings).predict(timings)
    packed = pack_gpu(H200, w4a16.types_of("fp16", "group", 128).types, RunOptions("gemm-eval", correction=True))
    chosen = w4a16.chosen_rows(timings, predicted_us)[w4a16.has_all_configs(timings)]
    assert len(chosen) > 10
    for row in chosen.tolist():
        (best,) = find_best_config(H200, timings.problems()[row], packed)
        assert best["latency_us"] == predicted_us[row]
        assert best["physics_us"] != predicted_us[row]
        assert [best["cta_m"], best["cta_n"]] == timings.frame.loc[row, ["cta_m", "cta_n"]].tolist()


def save(frame: pd.DataFrame, folder: Path, name: str = "table") -> Path:
    path = folder / f"{name}.parquet"
    frame.drop(columns="table", errors="ignore").to_parquet(path)
    return path


def test_a_calibration_is_what_a_file_gives_back(tmp_path: Path) -> None:
    rows = planted(GEMV_MMA)
    halves = [save(rows.frame[half::2], tmp_path, f"half-{half}") for half in range(2)]
    found = w4a16.calibrate_w4a16(H200, GEMV_MMA, halves, num_folds=2, seed=4)
    path = tmp_path / "h200-sxm" / f"gemm-eval-{GEMV_MMA}.yaml"
    path.parent.mkdir()
    path.write_text(found.to_yaml(), encoding="utf-8")
    assert load_calibration(path) == found
    assert (found.gpu, found.library, found.family) == ("h200-sxm", "gemm-eval", GEMV_MMA)
    assert list(found.coefficients) == list(default_coefficients(GEMV_MMA))
    assert set(found.fitted) == set(found.coefficients)
    assert "seed 4" in found.folds
    assert [(item.data, item.num_rows) for item in found.errors] == [
        (f"w4a16/half-{half}", len(rows.frame[half::2])) for half in range(2)
    ]
    assert all(item.mape_percent < 1.5 and abs(item.bias_percent) < 0.5 for item in found.errors)


@pytest.mark.parametrize(
    ("gpu", "frame", "error", "message"),
    [
        ("h200-sxm", lambda frame: frame.drop(columns=["split_k"]), InvalidInputError,
         "lacks split_k; gemm-eval measure --kernel w4a16"),
        ("h200-sxm", lambda frame: frame.drop(columns=["mode", "cta_m"]), InvalidInputError, "lacks mode, cta_m; "),
        ("h200-sxm", lambda frame: frame.assign(cta_m=40), InvalidInputError, r"row 1: no kernel .*'cta_m': 40"),
        ("h200-sxm", lambda frame: frame.assign(family="sm90_wgmma"), InvalidInputError, "row 1: no kernel of ours"),
        ("h200-sxm", lambda frame: frame.assign(schedule="vector"), InvalidInputError, "row 1: no kernel of ours"),
        ("h200-sxm", lambda frame: frame.assign(group_size=256), UnsupportedError, r"got sm_90, .* groups of 256"),
        ("v100", lambda frame: frame, UnsupportedError, "library gemm-eval has kernels for sm_80, .* got sm_70"),
        ("l40s", lambda _: rows_in(SM90).frame, InvalidInputError, "row 1: no kernel of ours on this GPU"),
        ("b200", lambda _: rows_in(SM90).frame, InvalidInputError, "row 1: no kernel of ours on this GPU"),
    ],
)  # fmt: skip
def test_bad_tables(tmp_path: Path, gpu: str, frame: Any, error: type[Exception], message: str) -> None:
    path = save(frame(rows_in(GEMV_MMA).frame), tmp_path)
    with pytest.raises(error, match=message):
        w4a16.read_w4a16_timings(load_arch(gpu, GpuSpec), [path])


@pytest.mark.parametrize(
    ("family", "change", "error", "message"),
    [
        (GEMV_MMA, lambda rows: rows[: MIN_ROWS - 1], InvalidInputError, f"at least 30 rows of {GEMV_MMA}, got 29"),
        (SM80, lambda rows: rows, InvalidInputError, f"at least 30 rows of {SM80}, got 0"),
        (GEMV_MMA, lambda rows: rows.assign(N=rows["N"][0], K=rows["K"][0]), InvalidOptionError, r"in 2\.\.1, "),
    ],
)  # fmt: skip
def test_too_few_rows_or_pairs(tmp_path: Path, family: str, change: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        w4a16.calibrate_w4a16(H200, family, [save(change(rows_in(GEMV_MMA).frame), tmp_path)])


def test_a_single_replay_that_was_held_up_is_no_timing() -> None:
    (path,) = (path for path in w4a16.list_w4a16_tables("h200-sxm", is_held_back=True) if path.stem == "fp16-full")
    table = pd.read_parquet(path)
    timings = w4a16.read_w4a16_timings(H200, [path])
    best_us = table.groupby(["M", "K", "N", "mode", "group_size"])["latency_us"].transform("min")
    (interrupted,) = np.flatnonzero(table["latency_us"] > 60.0 * best_us)
    assert table["latency_us"][interrupted] > 160.0 * best_us[interrupted]
    assert len(timings) == len(table) - 1
    assert (timings.measured_us <= 60.0 * timings.best_us).all()
