"""Sweeps over grouped GEMMs, and over a GPU with learned corrections."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, load_arch
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.sweep import Space, Workload, load_sweep, read_sweep_file, sweep

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

GROUPS = (120, 3, 0, 17)
GROUPED = GemmProblem.grouped(GROUPS, 96, 128)
PLAIN = GemmProblem(1, 64, 96, 128)
SPACE = Space("demo-8core", num_cores=[2, 4], dram_gb_per_s=[50.0, 400.0])
LOADS = [Workload("experts", ((GROUPED, 3), (PLAIN, 1))), Workload("dense", ((PLAIN, 2),))]


@pytest.mark.parametrize("timing", ["overlap", "pipeline"])
def test_chips_are_given_the_groups_of_their_gemms(timing: str) -> None:
    result = sweep(Space("demo-8core", num_cores=[2, 4], timing=timing), LOADS, progress=False)

    assert result["excluded"].tolist() == ["", ""]
    for point in range(2):
        alone = GEMMEvaluator(result.evaluator(point).arch, allow_idle_cores=False, disk_cache=False)
        grouped_us, plain_us = (alone.evaluate_problem(problem).latency_us for problem in (GROUPED, PLAIN))
        row, total_us = result.row(point), 3 * grouped_us + plain_us
        assert row["experts_latency_us"] == pytest.approx(total_us, rel=1e-14)
        assert row["dense_latency_us"] == 2 * plain_us
        rate = 2 * 96 * 128 * (3 * 140 + 64) / total_us / 1e6
        assert row["experts_tflop_per_s"] == pytest.approx(rate, rel=1e-12)
    assert result.evaluate(0)["experts"]["row_groups"].tolist() == [GROUPS, None]
    gpus = sweep(Space("h200-sxm", num_sms=[66, 132]), [LOADS[0]], progress=False)
    assert gpus["excluded"].tolist() == ["", ""]


def test_a_folder_keeps_groups(tmp_path: Path) -> None:
    first = sweep(SPACE, LOADS, path=tmp_path, progress=False)
    again = load_sweep(tmp_path)

    assert again.workloads == tuple(LOADS)
    assert again["latency_us"].tolist() == first["latency_us"].tolist()
    other = Workload("experts", ((GemmProblem.grouped((120, 3, 1, 16), 96, 128), 3), (PLAIN, 1)))
    with pytest.raises(GemmEvalError, match="another sweep"):
        sweep(SPACE, [other, LOADS[1]], path=tmp_path, progress=False)


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


def test_points_have_the_correction_of_their_preset() -> None:
    sizes = (1, 64, 4096, 4096)
    result = sweep(Space("h200-sxm", {"num_sms": [100, 132]}), [sizes], dtype="bf16", progress=False)
    base = load_arch("h200-sxm")
    changed = GEMMEvaluator(base.with_(num_sms=100), disk_cache=False).evaluate(*sizes, "bf16")
    preset = GEMMEvaluator(base, disk_cache=False).evaluate(*sizes, "bf16")

    assert result["latency_us"].tolist() == [changed.latency_us, preset.latency_us]
    assert preset.latency_us != preset.physics_us
    assert changed.latency_us / changed.physics_us == pytest.approx(preset.latency_us / preset.physics_us)
    (table,) = result.evaluate(1).values()
    assert table["latency_us"].tolist() == [preset.latency_us]
