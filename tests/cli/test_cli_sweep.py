"""The commands on design spaces, `sweep`, `pareto` and `report`: what they print and write, and their exit codes."""

import json
import re
from pathlib import Path

import pytest

from gemm_eval.sweep import SweepResult, load_sweep
from gemm_eval.units import time_text
from tests.cli.commands import Ran

pytestmark = pytest.mark.usefixtures("own_cache")
SPACE = """
base: demo-8core
fields:
  num_cores: [2, 4, 8]
  dram_gb_per_s: {range: [100.0, 400.0], num: 4}
  area_mm2: = 2 * num_cores + 0.02 * dram_gb_per_s
workloads:
  - {name: gemms, gemms: [[1, 16, 1024, 1024], [1, 256, 1024, 1024, 3]]}
objectives: [latency_us, area_mm2]
constraints: [area_mm2 <= 20]
"""
NUM = 12


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    Ran("sweep", space_file(folder), "--out", folder / "points")
    return folder / "points"


@pytest.fixture(scope="module")
def result(points: Path) -> SweepResult:
    return load_sweep(points)


def space_file(folder: Path, text: str = SPACE) -> Path:
    path = folder / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def table(text: str) -> list[list[str]]:
    """Cells of the rows below the line of a table."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("──")) + 1
    rows = []
    for line in lines[start:]:
        if not re.match(r"\s*\d+\s{2,}", line):
            break
        rows.append(line.split())
    return rows


# sweep


def test_sweep_prints_the_front_and_keeps_the_points(tmp_path: Path) -> None:
    ran = Ran("sweep", space_file(tmp_path), "--out", tmp_path / "points")
    result = load_sweep(tmp_path / "points")
    front = result.pareto()

    assert (ran.code, ran.err) == (0, "")
    assert len(result) == NUM
    assert ran.out.startswith(f"Pareto front: {len(front)} of {NUM} points")
    rows = table(ran.out)
    assert [row[0] for row in rows] == [str(point) for point in front["point"]]
    assert [row[4] for row in rows] == [f"{value:,.4g}" for value in front["latency_us"]]
    assert {tuple(row[-2:]) for row in rows} == {("-", "analytic")}
    (reason,) = result.excluded().itertuples(index=False)
    expected = f"{reason.num_points} points excluded as area_mm2; first: point {reason.first_point}, {reason.example}"
    assert " ".join(ran.out.split()).endswith(expected)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["points", "space.yaml"]


def test_a_sweep_that_leaves_no_point_is_an_error(tmp_path: Path) -> None:
    file = space_file(tmp_path, SPACE.replace("area_mm2 <= 20", "area_mm2 <= 1"))
    ran = Ran("sweep", file, "--out", tmp_path / "points")
    assert ran.code == 3
    assert "no point is left: all 12 are excluded, most as area_mm2" in ran.err


def test_a_space_that_is_refused_is_one_line(tmp_path: Path) -> None:
    for is_json in (False, True):
        ran = Ran(
            "sweep", space_file(tmp_path, SPACE + "colour: red\n"), "--out", tmp_path / "p", *["--json"][:is_json]
        )
        assert (ran.code, ran.out) == (2, "")
        error = json.loads(ran.err)["error"]["message"] if is_json else ran.err.removeprefix("error: ").rstrip("\n")
        assert "colour" in error
        assert "\n" not in error
    assert not (tmp_path / "p").exists()


def test_folders_that_are_refused(tmp_path: Path, points: Path) -> None:
    other = space_file(tmp_path, SPACE.replace("[2, 4, 8]", "[2, 4]"))
    for words, message in (
        (("sweep", other, "--out", points), "holds another sweep"),
        (("sweep", tmp_path / "none.yaml", "--out", tmp_path / "x"), "none.yaml"),
        (("pareto", tmp_path), "is no folder of a sweep"),
        (("report", tmp_path), "is no folder of a sweep"),
    ):
        ran = Ran(*words)
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err


# pareto


def test_pareto_by_other_objectives(points: Path, result: SweepResult) -> None:
    aims = ["tflop_per_s", "dram_bytes"]
    document = Ran("pareto", points, "-o", aims[0], "--objective", aims[1], "--json").json()

    front = result.pareto(aims)
    assert [row["point"] for row in document["front"]] == front["point"].tolist()
    basis = ["low_us", "high_us", "library", "source"]
    assert list(document["front"][0]) == ["point", "num_cores", "dram_gb_per_s", "area_mm2", *aims, *basis]
    ran = Ran("pareto", points, "-o", "speed")
    assert (ran.code, ran.out) == (2, "")
    assert "no column 'speed'; there are point, arch, num_cores" in ran.err


def test_explain(points: Path, result: SweepResult) -> None:
    assert Ran("pareto", points, "--explain", "5").out == result.explain(5) + "\n"
    document = Ran("pareto", points, "--explain", "5", "--json").json()
    assert document == {"point": 5, "explanation": result.explain(5)}
    excluded = int(result.excluded()["first_point"].iloc[0])
    assert "Excluded: area_mm2 = " in Ran("pareto", points, "--explain", str(excluded)).out
    ran = Ran("pareto", points, "--explain", str(NUM))
    assert (ran.code, ran.out) == (2, "")
    assert f"point must be in 0..{NUM - 1}, got {NUM}" in ran.err


# report


def test_report_on_a_sweep(points: Path, tmp_path: Path, result: SweepResult) -> None:
    path = tmp_path / "page.html"
    path.write_text("old", encoding="utf-8")
    ran = Ran("report", points, "--out", path)

    assert (ran.code, ran.out, ran.err) == (0, f"wrote {path}\n", "")
    html = path.read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert time_text(result.pareto()["latency_us"].iloc[0]) in html


def test_report_on_a_model(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    words = ("--model", "llama-3-8b", "--arch", "demo-8core", "--phase", "decode", "--batch", "2", "--prompt", "64")
    ran = Ran("report", *words, "--out", path)

    assert (ran.code, ran.out) == (0, f"wrote {path}\n")
    assert "<title>llama-3-8b on demo-8core</title>" in path.read_text(encoding="utf-8")


def test_report_on_several_archs(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    archs = ("--arch", "demo-8core", "--arch", "sg2260")
    for words, title in (
        (("--model", "llama-3-8b", "--phase", "decode", "--prompt", "64"), "GEMMs of llama-3-8b on demo-8core, sg2260"),
        (("--gemm", "1,16,256,256"), "1 GEMM on demo-8core, sg2260"),
    ):
        ran = Ran("report", *words, *archs, "--out", path)
        assert (ran.code, ran.out, ran.err) == (0, f"wrote {path}\n", "")
        assert f"<title>{title}</title>" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words", [[], ["FOLDER", "--model", "llama-3-8b"], ["--model", "llama-3-8b"], ["FOLDER", "--arch", "demo-8core"]]
)
def test_reports_on_nothing_or_two_things_are_refused(points: Path, tmp_path: Path, words: list[str]) -> None:
    ran = Ran("report", *(str(points) if word == "FOLDER" else word for word in words), "--out", tmp_path / "x.html")
    assert ran.code == 2
    assert not (tmp_path / "x.html").exists()
