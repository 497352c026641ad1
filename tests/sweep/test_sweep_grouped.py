"""Sweeps over grouped GEMMs, and over a GPU with learned corrections."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, load_arch
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.search.multicore import find_best_of_archs
from gemm_eval.sweep import Grid, Space, Workload, chunk, load_sweep, read_sweep_file, sweep
from gemm_eval.sweep.chunk import SweepWork
from gemm_eval.sweep.description import check_description, describe, digest_of, workloads_of
from gemm_eval.sweep.metrics import make_schema
from tests.evaluate.grouped_stand_in import give_answers, one_gemm, with_sums

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

GROUPS = (120, 3, 0, 17)
GROUPED = GemmProblem.grouped(GROUPS, 96, 128)
PLAIN = GemmProblem(1, 64, 96, 128)
SPACE = Space("demo-8core", num_cores=[2, 4], dram_gb_per_s=[50.0, 400.0])
LOADS = [Workload("experts", ((GROUPED, 3), (PLAIN, 1))), Workload("dense", ((PLAIN, 2),))]


@pytest.fixture
def with_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    give_answers(monkeypatch)

    def of_archs(num_cores: int, params: Any, type_of: Any, sizes: Any, *, layouts: Any, **options: Any) -> Any:
        return find_best_of_archs(num_cores, params, type_of, with_sums(sizes, layouts), **options)

    monkeypatch.setattr(chunk, "find_best_of_archs", of_archs)


def work_of(*loads: Workload) -> SweepWork:
    options = {"allow_idle_cores": False, "library": None, "l2": None, "clock": None}
    return SweepWork(SPACE, loads, (), options, make_schema(SPACE, loads, [(2, 50.0)]))


def description_of(*loads: Workload) -> dict[str, Any]:
    return describe(work_of(*loads), ["latency_us"], Grid(), 4, 4)


@pytest.mark.usefixtures("with_answers")
def test_chips_are_given_the_groups_of_their_gemms() -> None:
    result = sweep(SPACE, LOADS, executor=None, progress=False)

    assert result["excluded"].tolist() == [""] * 4
    for point in range(4):
        arch = result.evaluator(point).arch
        alone = GEMMEvaluator(arch, allow_idle_cores=False, disk_cache=False)
        grouped_us, plain_us = (alone.evaluate_problem(one_gemm(one)).latency_us for one in (GROUPED, PLAIN))
        assert result.row(point)["experts_latency_us"] == 3 * grouped_us + plain_us
        assert result.row(point)["dense_latency_us"] == 2 * plain_us
        flop = 2 * 96 * 128 * (3 * 140 + 64)
        rate = flop / (3 * grouped_us + plain_us) / 1e6
        assert result.row(point)["experts_tflop_per_s"] == pytest.approx(rate, rel=1e-12)
    assert result.evaluate(0)["experts"]["row_groups"].tolist() == [GROUPS, None]


@pytest.mark.usefixtures("with_answers")
def test_a_folder_keeps_groups(tmp_path: Path) -> None:
    first = sweep(SPACE, LOADS, path=tmp_path / "sweep", progress=False)
    again = load_sweep(tmp_path / "sweep")

    assert again.workloads == tuple(LOADS)
    assert again["latency_us"].tolist() == first["latency_us"].tolist()
    other = Workload("experts", ((GemmProblem.grouped((120, 3, 1, 16), 96, 128), 3), (PLAIN, 1)))
    with pytest.raises(GemmEvalError, match="another sweep"):
        sweep(SPACE, [other, LOADS[1]], path=tmp_path / "sweep", progress=False)


def test_a_description_gives_workloads_back() -> None:
    for loads in (LOADS, LOADS[1:]):
        said = description_of(*loads)
        check_description(said)
        assert workloads_of(said) == tuple(loads)


@pytest.mark.parametrize("groups", [[120, 3, 0, 18.5], [120, 3], [121, 3, 0, 17], ["120"], "120", [[1]], [-1, 120]])
def test_damaged_groups_are_refused(groups: Any) -> None:
    said = copy.deepcopy(description_of(*LOADS))
    said["workloads"][0]["gemms"][0]["row_groups"] = groups
    said["digest"] = digest_of(said)

    with pytest.raises(GemmEvalError):
        check_description(said)
    said["workloads"][0]["gemms"][0]["rows"] = 1
    with pytest.raises(InvalidOptionError, match="no GemmProblem is like"):
        workloads_of(said)


FILE = "base: demo-8core\nworkloads:\n  - {name: experts, grouped: [{row_groups: [120, 3, 0, 17], K: 96, N: 128"


def test_groups_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(FILE + ", count: 3}], gemms: [[1, 64, 96, 128]], dtype: fp16}\n")

    (one,) = read_sweep_file(path).workloads
    assert one == Workload("experts", ((PLAIN, 1), (GROUPED, 3)))
    path.write_text(FILE + "}], dtype: w4a16}\n")
    ((problem, count),) = read_sweep_file(path).workloads[0].gemms
    assert (problem.row_groups, str(problem.weight_dtype), count) == (GROUPS, "int4", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE.replace("[120, 3, 0, 17]", "[0, 0]") + "}]}\n", "must have a row in one group"),
        (FILE.replace("120", "-1") + "}]}\n", "row_groups must be integers in"),
        (FILE + ", G: 4}]}\n", "grouped.0.G"),
        (FILE.replace("K: 96, ", "") + "}]}\n", "grouped.0.K"),
        (FILE + ", count: 0}]}\n", "count"),
        ("base: demo-8core\nworkloads:\n  - {name: experts}\n", "has no GEMMs"),
    ],
)
def test_bad_groups_in_a_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(InvalidOptionError, match=message):
        read_sweep_file(path)


@pytest.mark.parametrize("timing", ["overlap", "pipeline"])
def test_answers_of_the_models(timing: str) -> None:
    space = Space("demo-8core", num_cores=[2, 4], timing=timing)
    result = sweep(space, [LOADS[0]], progress=False)

    for point in range(2):
        alone = GEMMEvaluator(result.evaluator(point).arch, allow_idle_cores=False, disk_cache=False)
        expected = 3 * alone.evaluate_problem(GROUPED).latency_us + alone.evaluate_problem(PLAIN).latency_us
        assert np.isclose(result["latency_us"][point], expected, rtol=1e-14)
    gpus = sweep(Space("h200-sxm", num_sms=[66, 132]), [LOADS[0]], progress=False)
    assert gpus["excluded"].tolist() == ["", ""]


SIZES = (1, 64, 4096, 4096)


def test_points_have_the_correction_of_their_preset() -> None:
    result = sweep(Space("h200-sxm", {"num_sms": [100, 132]}), [SIZES], dtype="bf16", progress=False)
    base = load_arch("h200-sxm")
    changed = GEMMEvaluator(base.with_(num_sms=100), disk_cache=False).evaluate(*SIZES, "bf16")
    preset = GEMMEvaluator(base, disk_cache=False).evaluate(*SIZES, "bf16")

    assert [result.row(point)["latency_us"] for point in (0, 1)] == [changed.latency_us, preset.latency_us]
    assert preset.latency_us != preset.physics_us
    assert changed.latency_us / changed.physics_us == pytest.approx(preset.latency_us / preset.physics_us)
    (table,) = result.evaluate(1).values()
    assert table["latency_us"].tolist() == [preset.latency_us]
