"""The committed timings of grouped GEMMs hold together, and readers of plain GEMMs leave them alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval.measure import GroupedShape, dataset_hash, list_grouped_shapes
from gemm_eval.measure.data_set import COLUMNS, GROUPED_COLUMNS, cutlass_tile
from gemm_eval.validation.tables import list_timings, measured_root, meta_of
from gemm_eval.workload import MAX_GROUPS, GemmProblem

FOLDER = measured_root("h200-sxm") / "grouped"
PATH = FOLDER / "bf16.parquet"
TOKENS, DRAM_BYTES_PER_US, PEAK_FLOP_PER_US = 16_384, 4.8e6, 989.4e6


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    frame = pd.read_parquet(PATH)
    frame["groups"] = [tuple(map(int, text.split())) for text in frame["row_groups"]]
    frame["read"] = [sum(rows > 0 for rows in groups) for groups in frame["groups"]]
    return frame


def test_there_are_layouts_enough_of_many_models(frame: pd.DataFrame) -> None:
    layers = frame[frame["model"] != "none"]
    assert set(frame.columns) - {"groups", "read"} == COLUMNS.keys() | GROUPED_COLUMNS.keys()
    assert len(layers) >= 1200
    assert layers["model"].nunique() == 14
    assert (layers["num_tokens"].min(), layers["num_tokens"].max()) == (8, TOKENS)
    assert not frame[["row_groups", "kernel", "cta_m", "latency_us"]].isna().any().any()
    assert meta_of(PATH)["sha256"] == dataset_hash(PATH)
    assert meta_of(PATH)["failed"] == []


DRAWN = {"power_law_1.01", "power_law_1.2", "uniform"}


def names_of(groups_too: bool) -> list[str]:
    return [name for name in GroupedShape._fields if groups_too or name not in ("M", "row_groups")]


def rows_of(frame: pd.DataFrame, *, groups_too: bool) -> set[tuple[Any, ...]]:
    listed = frame.assign(row_groups=frame["groups"])[names_of(groups_too)]
    return set(listed.itertuples(index=False, name=None))


def one_by_one(row: Any) -> tuple[int, ...]:
    """Rows of the first rank's experts where token t takes expert t and others in equal distances from it."""
    stride = -(-row.num_experts // row.topk)
    chosen = Counter((t + i * stride) % row.num_experts for t in range(row.num_tokens) for i in range(row.topk))
    return tuple(chosen[expert] for expert in range(row.num_experts // row.ep))


def test_the_layouts_are_those_that_the_library_lists(frame: pd.DataFrame) -> None:
    """All of them, and where nothing is drawn the groups too. Draws are others since these were timed."""
    listed = list_grouped_shapes("grouped")
    names = names_of(groups_too=False)
    assert len(rows_of(frame, groups_too=False)) == len(frame)
    assert rows_of(frame, groups_too=False) == {tuple(getattr(shape, name) for name in names) for shape in listed}
    # so are starts of fewer tokens than experts of a stride, which were not spread
    few = (frame["distribution"] == "balanced") & (frame["num_tokens"] < -(-frame["num_experts"] // frame["topk"]))
    known = frame[~few & ~frame["distribution"].isin(DRAWN)]
    assert set(known["distribution"]) == {"balanced", "sparse", "floor"}
    assert len(known) > 500
    assert rows_of(known, groups_too=True) <= set(map(tuple, listed))
    assert 0 < few.sum() < 60
    for row in frame[few].itertuples():
        assert row.groups == one_by_one(row)


def test_groups_are_loads_of_the_rank_that_has_most(frame: pd.DataFrame) -> None:
    for row in frame.itertuples():
        problem = GemmProblem.grouped(row.groups, row.K, row.N, input_dtype="bf16")
        assert (problem.G, problem.M, problem.rows) == (row.G, row.M, row.rows)
        assert problem.G == row.num_experts // row.ep <= MAX_GROUPS
        assert 0 <= min(row.groups) <= max(row.groups) <= row.num_tokens
        total = row.num_tokens * row.topk
        if row.ep == 1:
            assert sum(row.groups) == total
        elif row.distribution in DRAWN:
            assert total / row.ep <= sum(row.groups) <= total
        else:
            assert sum(row.groups) <= total
    keys = ["model", "num_tokens", "tp", "ep", "distribution", "seed"]
    assert (frame[frame["distribution"] != "floor"].groupby(keys)["groups"].nunique() == 1).all()  # of both GEMMs
    drawn = frame[frame["distribution"].isin(DRAWN)]
    assert set(drawn["distribution"]) == DRAWN
    assert drawn.groupby("num_tokens")["groups"].nunique().min() > 10  # they differ


def test_results_were_checked_with_and_without_empty_groups() -> None:
    errors = meta_of(PATH)["check_relative_errors"]
    assert len(errors) >= 15
    assert max(errors.values()) < 3e-3  # bf16 rounds the output to 2**-9
    assert {"skewed", "empty at both ends", "large tiles, skewed"} <= errors.keys()


def test_no_time_is_below_what_the_machine_allows(frame: pd.DataFrame) -> None:
    weight_bytes = 2 * frame["read"] * frame["K"] * frame["N"]
    assert (frame["latency_us"] > weight_bytes / DRAM_BYTES_PER_US).all()
    assert (frame["latency_us"] > 2.0 * frame["rows"] * frame["K"] * frame["N"] / PEAK_FLOP_PER_US).all()
    assert (frame["spread_frac"] < 0.06).all()
    cold = weight_bytes * frame["num_weight_copies"] > 2 * 62_914_560
    assert (cold | (frame["calls_per_replay"] == frame["num_weight_copies"]) | (frame["model"] == "none")).all()


def test_the_tile_follows_the_mean_rows(frame: pd.DataFrame) -> None:
    is_small = (frame["rows"] // frame["G"] <= 128) | (frame["N"] <= 128)
    assert (is_small == (frame["cta_m"] == 64)).all()
    for name in frame["kernel"].unique():
        assert cutlass_tile(name)["cluster_m"] == 2


def test_they_repeat(frame: pd.DataFrame) -> None:
    again = pd.read_parquet(FOLDER / "bf16-repeat.parquet")
    keys = [name for name in GroupedShape._fields if name != "take"]
    both = again.merge(frame, on=keys, suffixes=("", "_first"))
    off = np.abs(both["latency_us"] / both["latency_us_first"] - 1.0)
    assert len(both) == len(again) >= 100
    assert sorted(again["take"].unique()) == [1, 2]
    assert off.median() < 0.005
    assert off.max() < 0.03


def test_readers_of_plain_gemms_leave_them_alone() -> None:
    for has_candidates in (False, True):
        names = {timings.name for timings in list_timings("h200-sxm", has_candidates=has_candidates)}
        assert not any(name.startswith("grouped") for name in names)
    assert "cublas/bf16-experts" not in {timings.name for timings in list_timings("h200-sxm")}
