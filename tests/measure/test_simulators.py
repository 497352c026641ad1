"""Other simulators beside our model: what they write is read right, and rules of why they differ hold on numbers."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.command import run
from benchmarks.simulators import __main__ as command
from benchmarks.simulators.causes import (
    explain,
    least_bytes,
    least_factored_bytes,
    scalesim_bytes,
    scalesim_compute,
    scalesim_cycles,
)
from benchmarks.simulators.chips import CHIPS, GEMMS, Chip, Counted, Gemm, Traffic, count_ours
from benchmarks.simulators.scalesim import count_scalesim, read_reports
from benchmarks.simulators.zigzag import LOOP_FACTORS, count_zigzag, read_zigzag
from gemm_eval.words import has_package
from tests.cases import case

DATA = Path(__file__).resolve().parents[1] / "data" / "simulators"
ARRAY32, SMALL = CHIPS[:2]
TINY = Gemm(256, 128, 96)  # what DATA holds, on SMALL


def row(report: str) -> dict[str, str]:
    with (DATA / f"{report}_REPORT.csv").open(encoding="utf-8") as file:
        return next(csv.DictReader(file, skipinitialspace=True))


def scaled(chip: Chip, gemm: Gemm, **changes: Any) -> Counted:
    """What SCALE-Sim would say if every rule held to the word."""
    k_folds, n_folds = -(-gemm.K // chip.rows), -(-gemm.N // chip.columns)
    once = gemm.once
    moved = Traffic(once.a_bytes * n_folds, once.b_bytes, once.c_bytes * k_folds)
    compute = k_folds * n_folds * (gemm.M + 2 * chip.rows + chip.columns - 2) - 1
    cycles = max(compute, max(moved) / chip.dram_bytes_per_cycle)
    plain: dict[str, Any] = {
        "least": moved, "compute_cycles": compute, "cycles": cycles, "moved": moved, "exposed_cycles": 0.0,
        "mapping": "ws",
    }  # fmt: skip
    return Counted(**(plain | changes))


class TestReading:
    def test_zigzag(self) -> None:
        document = json.loads((DATA / "gemm_complete.json").read_text(encoding="utf-8"))
        found = read_zigzag(document, SMALL)

        assert found.least == found.moved == TINY.once
        assert found.compute_cycles == 256 * 4 * 3
        assert (found.cycles, found.exposed_cycles) == (3072 + 384 + 6, 384 + 6)
        assert found.mapping.startswith("K3 C2 C2 B16 B4 B4; in SRAM: I K3 C2 C2 B16 B4, W K3")

    def test_scalesim(self) -> None:
        found = read_reports(row("COMPUTE"), row("DETAILED_ACCESS"))

        assert found.moved == (266240 * 2, 51200 * 2, 98351 * 4)
        assert found.compute_cycles == 4 * 3 * (256 + 2 * 32 + 32 - 2) - 1
        assert (found.cycles, found.exposed_cycles) == (8830, 8830 - 8444)


class TestSpaces:
    @pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
    def test_the_search_by_our_rules_is_our_model(self, chip: Chip) -> None:
        for gemm in GEMMS:
            with case(gemm):
                assert least_bytes(chip, gemm) == count_ours(chip, gemm).least.total

    # What ZigZag 3.9 counted for its mapping of least energy.
    @pytest.mark.parametrize(
        ("chip", "gemm", "counted"),
        [
            (ARRAY32, Gemm(512, 512, 512), 9961472), (ARRAY32, Gemm(768, 512, 128), 1310720),
            (ARRAY32, Gemm(256, 2048, 256), 5505024), (SMALL, Gemm(384, 384, 384), 4423680),
            (SMALL, Gemm(64, 256, 1024), 819200), (SMALL, Gemm(256, 1024, 128), 3407872),
            (SMALL, Gemm(500, 1000, 70), 3379968), (SMALL, Gemm(97, 1000, 300), 1678592),
        ],
    )  # fmt: skip
    def test_the_search_by_zigzags_rules_is_zigzag(self, chip: Chip, gemm: Gemm, counted: int) -> None:
        assert least_factored_bytes(chip, gemm, LOOP_FACTORS, reads_first=True) == pytest.approx(counted, rel=0.005)


class TestCauses:
    def test_scalesim_where_every_rule_holds(self) -> None:
        gemm = Gemm(512, 256, 256)
        ours, theirs = count_ours(ARRAY32, gemm), scaled(ARRAY32, gemm)
        assert ours.cycles is not None
        assert theirs.cycles is not None
        moved = explain(ours.least.total, theirs.least.total, scalesim_bytes(ARRAY32, gemm, ours, theirs))
        array = explain(ours.compute_cycles, theirs.compute_cycles, scalesim_compute(ARRAY32, gemm, ours, theirs))
        time = explain(ours.cycles, theirs.cycles, scalesim_cycles(ARRAY32, gemm, ours, theirs))

        assert {cause.name for cause in moved.causes} >= {"A reloaded for its own SRAM", "partial sums spilled"}
        assert str(array) == "fill and drain of each fold"
        assert "a DRAM port per operand" in str(time)
        assert moved.unexplained == array.unexplained == time.unexplained == 0


class TestCommand:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two GEMMs, and simulators that need no package."""
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(command, "check_extra", lambda *_: None)
        monkeypatch.setattr(command, "GEMMS", (TINY, Gemm(64, 256, 1024)))
        fakes = {"zigzag": count_ours, "scalesim": lambda chip, gemm: scaled(chip, gemm, cycles=None)}
        for name, fake in fakes.items():
            monkeypatch.setitem(command.SIMULATORS, name, fake)

    def printed(self, capsys: pytest.CaptureFixture[str], *words: str) -> str:
        with pytest.raises(SystemExit) as exit_:
            run(command.app, ("--chip", "array32-small", *words))
        assert not exit_.value.code
        return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())

    def test_json_and_csv(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "sides.csv"
        words = ("--simulator", "scalesim", "--csv", str(path), "--json")
        lines = json.loads(self.printed(capsys, *words))["lines"]

        assert [tuple(line["gemm"].values()) for line in lines] == [TINY, (64, 256, 1024)]
        assert lines[0]["differences"]["compute_cycles"]["causes"][0]["name"] == "fill and drain of each fold"
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [row["simulator"] for row in rows] == ["scalesim"] * 2
        assert float(rows[0]["bytes_theirs"]) == scaled(SMALL, TINY).least.total


NEEDS = "needs {}, in an environment of its own: make compare"


@pytest.mark.skipif(not has_package("zigzag"), reason=NEEDS.format("zigzag-dse"))
def test_zigzag_runs() -> None:
    found = count_zigzag(SMALL, TINY)

    assert found.least == TINY.once
    assert found.compute_cycles == count_ours(SMALL, TINY).compute_cycles
    assert found.cycles is not None
    assert found.cycles >= found.compute_cycles


@pytest.mark.skipif(not has_package("scalesim"), reason=NEEDS.format("scalesim"))
def test_scalesim_runs() -> None:
    found = count_scalesim(SMALL, TINY)

    assert found.least == pytest.approx(scaled(SMALL, TINY).least, rel=0.001)
    assert found.compute_cycles == scaled(SMALL, TINY).compute_cycles
