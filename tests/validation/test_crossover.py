"""When W4A16 pays: the predicted crossover, the measured one, their comparison, the plot and the command."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from gemm_eval import GEMMEvaluator, validation
from gemm_eval.arch import data_root
from gemm_eval.cli.app import app
from gemm_eval.errors import InvalidInputError, InvalidOptionError, InvalidProblemError, UnsupportedError
from gemm_eval.evaluate.crossover import Crossover, w4a16_crossover
from gemm_eval.validation import crossover, plot_crossover
from tests.report.figures import legend_of

K, N = 4096, 12288
H200 = GEMMEvaluator("h200-sxm")
MEASURED = crossover.measured_speedups("h200-sxm")
PREDICTED = crossover.predict_speedups(H200, MEASURED)


def of_pair(frame: pd.DataFrame, k: int = K, n: int = N) -> pd.DataFrame:
    return frame[(frame["K"] == k) & (frame["N"] == n)]


def made(speedup: list[float], M: list[int] | None = None, **changes: Any) -> Crossover:
    """A crossover with W4A16 taking 10 us at every M."""
    num = len(speedup)
    rows = np.array(M or range(1, num + 1), np.int64)
    words = np.array(["dram"] * num, object)
    plain: dict[str, Any] = {
        "arch_name": "h200-sxm", "K": K, "N": N, "group_size": 128, "dense_dtype": "fp16", "l2": "cold",
        "clock": "burst", "max_M": int(rows[-1]), "min_speedup": 1.0, "is_calibrated": True, "M": rows,
        "w4a16_us": np.full(num, 10.0), "dense_us": 10.0 * np.array(speedup), "w4a16_bound": words,
        "dense_bound": words,
    }  # fmt: skip
    return Crossover(**(plain | changes))


class TestPredicted:
    def test_few_rows_win_and_it_is_said_why(self) -> None:
        found = w4a16_crossover("h200-sxm", K, N, max_M=2048)
        text = str(found)
        assert found.win_ranges[0].first == 1
        assert found.first_loss_M == found.win_ranges[0].last + 1
        assert found.speedup[0] > 2.0
        assert found.is_calibrated
        assert "K=4096 N=12288 on h200-sxm, cold L2, burst clock, M = 1..2,048; predicted, calibrated" in text
        assert f"first loss at M = {found.first_loss_M:,}" in text
        assert "M = 1: " in text
        assert "bound by DRAM bandwidth" in text

    def test_options_of_the_evaluator_do_not_leak(self) -> None:
        plain = w4a16_crossover(H200, K, N, max_M=16)
        other = w4a16_crossover(GEMMEvaluator("h200-sxm", l2="warm", library="cublas"), K, N, max_M=16)
        np.testing.assert_array_equal(plain.speedup, other.speedup)

    @pytest.mark.parametrize(
        ("given", "error", "words"),
        [
            ({"K": 0}, InvalidProblemError, "K must be"),
            ({"K": 4095}, UnsupportedError, "multiples of 8, got K=4095 N=12288"),
            ({"group_size": 48}, UnsupportedError, "library gemm-eval has kernels for .* groups of 48"),
            ({"dense_dtype": "fp8"}, InvalidOptionError, "dense_dtype must be one of fp16, bf16, got 'fp8'"),
            ({"l2": "hot"}, InvalidOptionError, "l2"),
            ({"max_M": 0}, InvalidOptionError, "max_M must be an integer in 1..1048576, got 0"),
            ({"max_M": True}, InvalidOptionError, "max_M"),
            ({"min_speedup": "1"}, InvalidOptionError, "min_speedup must be a positive number, got '1'"),
            ({"min_speedup": 0.0}, InvalidOptionError, "min_speedup must be a positive number"),
            ({"arch": "sg2260"}, UnsupportedError, "sg2260 is none"),
            ({"arch": "v100"}, UnsupportedError, "library gemm-eval has kernels for .* got sm_70"),
        ],
    )
    def test_refusals(self, given: dict[str, Any], error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            w4a16_crossover(**({"arch": H200, "K": K, "N": N} | given))


@pytest.mark.parametrize(
    ("speedup", "ranges", "first_loss", "last_win", "words"),
    [
        ([2.0, 1.5, 0.9, 1.0, 1.1, 0.8], ((1, 2), (5, 5)), 3, 5, "faster at M = 1..2, 5; first loss at M = 3"),
        ([2.0, 1.5], ((1, 2),), None, 2, "faster at every M"),
        ([0.9, 1.0], (), 1, None, "faster at no M"),
        ([2.0, 0.5] * 6, tuple((M, M) for M in range(1, 12, 2)), 2, 11, "and 2 more ranges up to 11"),
    ],
)
def test_ranges_of_wins(
    speedup: list[float], ranges: Any, first_loss: int | None, last_win: int | None, words: str
) -> None:
    found = made(speedup)
    assert (found.win_ranges, found.first_loss_M, found.last_win_M) == (ranges, first_loss, last_win)
    assert (found.always_pays, found.never_pays) == (first_loss is None, last_win is None)
    assert words in str(found)


class TestMeasured:
    def test_best_of_ours_beside_cublas(self) -> None:
        folder = data_root() / "measured" / "h200-sxm" / "w4a16"
        ours, dense = (pd.read_parquet(folder / f"fp16{suffix}.parquet") for suffix in ("", "-cublas"))
        is_asked = (ours["mode"] == "group") & (ours["group_size"] == 128)
        best = ours[is_asked & (ours["M"] == 64) & (ours["K"] == K) & (ours["N"] == N)]["latency_us"].min()
        cublas = dense[(dense["M"] == 64) & (dense["K"] == K) & (dense["N"] == N)]["latency_us"].item()
        row = of_pair(MEASURED).set_index("M").loc[64]
        assert (row["w4a16_us"], row["dense_us"], row["speedup"]) == (best, cublas, cublas / best)
        assert row["table"] == "fp16"

    @pytest.mark.parametrize("given", [("a100-sxm-80gb",), ("h200-sxm", 48), ("h200-sxm", 128, "bf16")])
    def test_nothing_measured(self, given: tuple[Any, ...]) -> None:
        with pytest.raises(InvalidInputError, match="no timings of W4A16"):
            crossover.measured_speedups(*given)

    @pytest.mark.parametrize(
        ("speedup", "first_loss", "last_win"),
        [
            ([2.0, 1.1, 0.9], "2..4", "2..4"),
            ([2.0, 0.9, 1.1], "1..2", "> 4"),
            ([2.0, 1.5, 1.1], "> 4", "> 4"),
            ([0.9, 0.9, 1.0], "<= 1", "<= 1"),
        ],
    )
    def test_brackets(self, speedup: list[float], first_loss: str, last_win: str) -> None:
        M = [1, 2, 4]
        assert tuple(map(str, crossover.brackets(M, speedup))) == (first_loss, last_win)


class TestCompared:
    def test_predictions_are_those_of_evaluate(self) -> None:
        row = of_pair(PREDICTED).set_index("M").loc[16]
        assert row["predicted_w4a16_us"] == H200.evaluate(1, 16, K, N, "w4a16", correction=False).latency_us
        assert row["predicted_dense_us"] == H200.evaluate(1, 16, K, N, "fp16", correction=False).latency_us

    def test_most_winners_are_right(self) -> None:
        """On rows that W4A16 was fitted on, and on the table that was held back; cuBLAS was fitted on neither."""
        shares = crossover.sign_shares(PREDICTED).set_index("table")
        assert (shares["clear_right_frac"] > 0.8).all()  # at large M both sides are within a few percent
        assert (shares["lost_frac"] < 0.01).all()
        # one rule for all tables; on some of them nearly every GEMM is won, so that "always" loses nothing
        assert shares["lost_frac"].mean() < shares[["always_lost_frac", "never_lost_frac"]].mean().min()

    def test_shares(self) -> None:
        frame = pd.DataFrame(
            {
                "table": "mine", "is_held_back": False, "w4a16_us": [10.0, 10.0, 10.0, 10.0],
                "dense_us": [20.0, 10.1, 9.0, 12.0], "predicted_speedup": [1.5, 0.9, 0.8, 0.9],
            }
        )  # fmt: skip
        frame["speedup"] = frame["dense_us"] / frame["w4a16_us"]
        frame["is_sign_right"] = [True, False, True, False]
        frame["is_clear"] = (frame["speedup"] - 1.0).abs() > crossover.CLEAR_FRAC
        row = crossover.sign_shares(frame).iloc[0]
        assert (row["num"], row["num_clear"]) == (4, 3)
        assert row["right_frac"] == pytest.approx(0.5)
        assert row["clear_right_frac"] == pytest.approx(2 / 3)
        assert row["always_frac"] == pytest.approx(2 / 3)
        assert row["lost_frac"] == pytest.approx((0.01 + 0.2) / 4)
        assert row["always_lost_frac"] == pytest.approx((10 / 9 - 1) / 4)
        assert row["never_lost_frac"] == pytest.approx((1.0 + 0.01 + 0.2) / 4)


class TestPlot:
    def test_curve_and_points(self) -> None:
        figure = plot_crossover(w4a16_crossover(H200, K, N, max_M=2048), MEASURED)
        upper, lower = figure.axes
        assert "speedup" in upper.get_ylabel()
        assert lower.get_ylabel() == "latency"  # ticks have the units
        assert lower.get_xlabel() == "M (rows of A and C)"
        assert [upper.get_xscale(), upper.get_yscale(), lower.get_yscale()] == ["log", "log", "log"]
        sides = ["W4A16, predicted", "W4A16, measured", "fp16, predicted", "fp16, measured"]
        assert legend_of(figure) == [*sides, "W4A16 is faster"]
        assert len(upper.collections[-1].get_offsets()) == 14  # type: ignore[arg-type]


def run(words: str) -> Result:
    return CliRunner().invoke(app, ["crossover", *shlex.split(words)])


class TestCommand:
    def test_measured_and_plotted(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "curve.png"
        plain, ran = run("4096 12288 --max-m 2048"), run(f"4096 12288 --max-m 2048 --measured --plot {path}")
        assert (plain.exit_code, ran.exit_code) == (0, 0), ran.output
        assert "W4A16 is faster at M = 1..352" in plain.stdout
        assert "measured" not in plain.stdout
        assert "measured on h200-sxm" in ran.stdout
        assert "1,012.07" in ran.stdout
        assert path.read_bytes().startswith(b"\x89PNG")
        document = json.loads(run("4096 12288 --max-m 400 --measured --json").stdout)
        assert (document["first_loss_M"], len(document["measured"])) == (353, 14)
        assert document["measured"][0]["is_sign_right"] is True

    @pytest.mark.parametrize("is_json", [False, True])
    def test_all_pairs(self, is_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        few = pd.concat([of_pair(MEASURED, 8192, 1280), of_pair(MEASURED, 8192, 28672)])
        monkeypatch.setattr(validation, "measured_speedups", lambda *given: few)
        ran = run("--all --measured" + (" --json" if is_json else ""))
        assert ran.exit_code == 0, ran.output
        if is_json:
            document = json.loads(ran.stdout)
            predicted = [w4a16_crossover(H200, 8192, columns, max_M=8192).first_loss_M for columns in (1280, 28672)]
            assert [pair["first_loss_M"] for pair in document["pairs"]] == predicted
            assert [pair["measured_first_loss"] for pair in document["pairs"]] == [[64, 128], [8192, None]]
            assert len(document["shares"]) == 1
        else:
            assert "64..128" in ran.stdout
            assert "> 8192" in ran.stdout.replace(",", "")
            assert "fitted on it" in ran.stdout
