"""`gemm-eval kernels --compare`: its tables, its document, and what it refuses before a GPU is looked for."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gemm_eval.cli.app import app
from gemm_eval.measure import engines as measured
from gemm_eval.measure.engines import ExpertLayer, experts, grouped, side_by_side
from tests.measure.fake_engines import FakeDevice, fake_engine, fake_grouped_engine
from tests.measure.test_side_by_side import PROTOCOL

TIMES = {
    "ours": lambda gemm: 10.0,
    "humming": lambda gemm: 9.0 if gemm.M == 320 else 20.0,
    "cublas": lambda gemm: 30.0,
    "tinygemm": lambda gemm: 50.0,
}
GRID = ("--pair", "256,64", "--pair", "256,128", "--rows", "1,320")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    engines = {name: fake_engine(name, us) for name, us in TIMES.items()}
    engines["tinygemm"].largest_rows = 64
    engines["cublas"].why_missing = classmethod(lambda cls: "no cuBLAS: pip install it")  # type: ignore[method-assign, assignment]
    compare = partial(side_by_side.compare_engines, protocol=PROTOCOL, sleep=lambda _: None)
    monkeypatch.setattr(side_by_side, "ENGINES", engines)
    monkeypatch.setattr(measured, "make_device", lambda engines: FakeDevice())
    monkeypatch.setattr(measured, "compare_engines", compare)

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["kernels", "--compare", *words], env={"COLUMNS": "80", "TERM": "dumb"})

    return run


def test_tables_fit_80_columns(command: Any) -> None:
    done = command(*GRID)
    lines = done.stdout.splitlines()

    assert done.exit_code == 0, done.output
    assert max(map(len, lines)) <= 80
    assert "cublas is left out: no cuBLAS: pip install it" in done.stderr
    (row,) = [line.split() for line in lines if line.split()[:1] == ["320"]]
    assert row == ["320", "0.90", "0.90", "64", "x", "256", "-"]
    (row,) = [line.split() for line in lines if line.startswith("M <= 16")]
    assert row[3:] == ["2", "2.00", "(2.00)", "5.00", "(5.00)"]
    assert "Below 0.97: humming 2 of 4, tinygemm 0 of 2" in lines
    (row,) = [line.split() for line in lines if line.startswith("0.900") and " 128 " in line]
    assert row[:7] == ["0.900", "humming", "128", "256", "320", "10.00", "9.000"]


def test_the_document_has_every_timing(command: Any, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for suffix, read in ((".csv", pandas.read_csv), (".parquet", pandas.read_parquet)):
        out = tmp_path / f"timings{suffix}"
        found = json.loads(command(*GRID, "--json", "--out", str(out), "--engine", "humming").stdout)

        assert list(found["engines"]) == ["ours", "humming"]
        assert len(found["timings"]) == 8
        assert found["by_rows"]["320"]["humming"]["worst"] == pytest.approx(0.9, rel=0.01)
        assert found["by_regime"]["all"]["humming"]["num_cases"] == 4
        assert [(row["N"], row["M"]) for row in found["behind"]] == [(64, 320), (128, 320)]
        frame = read(out)
        assert list(frame["latency_us"]) == [row["latency_us"] for row in found["timings"]]
        assert set(frame["library"]) == {"ours 1.0", "humming 1.0"}


LAYERS = (ExpertLayer("wide", 4, 4, 2, 64, 256), ExpertLayer("one-of-eight", 2, 16, 4, 128, 64))


@pytest.fixture
def grouped_command(command: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    times = {"ours": 10.0, "humming": 12.0, "one-launch-a-group": 30.0}
    engines = {
        name: fake_grouped_engine(name, lambda gemm, us=us: us if gemm.tokens > 1 else 10.0)  # type: ignore[misc]
        for name, us in times.items()
    }
    compare = partial(grouped.compare_grouped_engines, protocol=PROTOCOL, sleep=lambda _: None)
    monkeypatch.setattr(grouped, "GROUPED_ENGINES", engines)
    monkeypatch.setattr(experts, "EXPERT_LAYERS", LAYERS)
    monkeypatch.setattr(measured, "compare_grouped_engines", compare)
    return partial(command, "--grouped", "--group-size", "32")


def test_grouped_tables_fit_80_columns(grouped_command: Any) -> None:
    done = grouped_command("--layer", "wide", "--layer", "one-of-eight", "--rows", "1,40")
    lines = done.stdout.splitlines()

    assert done.exit_code == 0, done.output
    assert max(map(len, lines)) <= 80
    (row,) = [line.split() for line in lines if line.split()[:1] == ["40"]]
    assert row[:3] == ["40", "1.20", "1.20"]
    assert row[6] == "3.00"
    assert "Below 0.97: humming 0 of 4, one launch a group 0 of 4" in lines


def test_the_grouped_document_says_layers_and_tokens(grouped_command: Any, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    out = tmp_path / "timings.csv"
    found = json.loads(grouped_command("--rows", "5", "--layer", "one-of-eight", "--json", "--out", str(out)).stdout)

    assert [row["engine"] for row in found["timings"]] == ["ours", "humming", "one-launch-a-group"]
    (row, *_) = found["timings"]
    assert (row["layer"], row["num_groups"], row["tokens"], row["expected_rows"]) == ("one-of-eight", 2, 5, 3)
    assert not found["failures"]
    assert list(pandas.read_csv(out)["tokens"]) == [5, 5, 5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--compare", "--grouped", "--pair", "64,64"), "--grouped"),
        (("--compare", "--grouped", "--layer", "no"), "--layer must be one of mixtral-8x7b-up, "),
        (("--compare", "--grouped", "--engine", "cublas"), "--engine must be one of ours, humming, one-launch-a-group"),
        (("--compare", "--layer", "mixtral-8x7b-up"), "--layer goes with --grouped"),
        (("--compare", "--pair", "4096"), "--pair must be K,N such as 4096,12288, got '4096'"),
        (("--compare", "--pair", "100,4096"), "K a multiple of 128 and N of 8, got 100,4096"),
        (("--compare", "--rows", "1,x"), "or 1..256:32, got 'x' in '1,x'"),
        (("--compare", "--engine", "marlin"), "--engine must be one of ours, humming, cublas, tinygemm, got 'marlin'"),
        (("--compare", "--group-size", "0"), "--group-size must be 32, 64 or 128, got 0"),
        (("--compare", "--activation", "fp8"), "--activation must be one of fp16, bf16, got 'fp8'"),
        (("--compare", "--out", "x.txt"), "--out must end with .parquet or .csv, got 'x.txt'"),
        (("--compare", "--arch", "h200-sxm"), "--compare does not go with --arch; it goes with"),
        (("--arch", "h200-sxm", "--rows", "1"), "--rows goes with --compare"),
        (("--arch", "h200-sxm", "--measured", "--rows", "1"), "--measured does not go with --rows"),
        (("--mode", "column"), "--arch NAME is missing, such as --arch h200-sxm; only --compare goes without"),
    ],
)
def test_wrong_words_are_one_line(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["kernels", *words])

    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
