"""`gemm-eval profile`: what it lists, what it says of choices, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import gemm_eval.measure
from gemm_eval.cli.app import app
from gemm_eval.cli.render_profile import Chosen, document_of, print_profile
from gemm_eval.errors import GemmEvalError
from gemm_eval.measure import profile_kernels
from tests.kernels.fake_kernels import FakeKernelRunner, config, item

ITEMS = [item(cta_m=cta_m) for cta_m in (32, 16, 128)]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(gemm_eval.measure, "W4A16Runner", lambda dtype: FakeKernelRunner(1000.0))
    monkeypatch.setenv("COLUMNS", "240")

    def run(*args: str) -> Result:
        return CliRunner().invoke(app, ["profile", *args])

    return run


def test_all_kernels_are_timed_and_the_best_ones_again() -> None:
    runner = FakeKernelRunner(broken=[config(cta_m=64)])
    found = profile_kernels(runner, [*ITEMS, item(cta_m=64)], [ITEMS[2].config])

    assert [kernel.config.cta_m for kernel in found.kernels] == [16, 32, 128]
    assert found.kernels[0].timing.num_replays == 7
    assert found.find(ITEMS[0].config) == (1, found.kernels[1])
    assert found.errors == {config(cta_m=64): "GemmEvalError: wrong"}
    assert found.find(config(cta_m=64)) is None
    # 256 x 128 weights of 4 bits, 2 groups of 128 columns, A and C of 16 rows
    assert found.bytes_moved == 128 * 128 + 2 * 2 * 128 + 2 * 16 * (256 + 128)


def test_nothing_to_time_is_an_error() -> None:
    with pytest.raises(GemmEvalError, match="no kernel can run this GEMM on this GPU"):
        profile_kernels(FakeKernelRunner(), [], [])
    with pytest.raises(GemmEvalError, match="no kernel could be timed; the first: GemmEvalError: wrong"):
        profile_kernels(FakeKernelRunner(broken=[ITEMS[0].config]), ITEMS[:1], [])


def test_the_table_names_places_and_distances(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    found = profile_kernels(FakeKernelRunner(), ITEMS, [])
    choices = [
        Chosen("cost model", ITEMS[1].config, 11.0),
        Chosen("somebody", ITEMS[0].config, 9.0),
        Chosen("nobody", config(cta_m=64), 8.0),
    ]
    print_profile(found, choices, "h200-sxm", "fp16", 2)
    text = capsys.readouterr().out

    assert "M 16, N 128, K 256, fp16 x int4 (scales: group of 128) on h200-sxm" in text
    assert "16x128x64" in text
    assert "128x128x64" not in text
    assert "cost model: 10.00 us (predicted 11.00 us), the best, place 1" in text
    assert "somebody: 20.00 us (predicted 9.000 us), +100.0% from the best, place 2" in text
    assert "not timed" in text

    document = document_of(found, choices, "h200-sxm", "fp16")
    assert json.loads(json.dumps(document)) == document
    assert document["kernels"][0]["tflop_per_s"] == pytest.approx(2 * 16 * 256 * 128 / 10.0 / 1e6)
    assert document["choices"][1]["over_best_frac"] == pytest.approx(1.0)
    assert document["choices"][1]["predicted_us"] == 9.0
    assert document["choices"][2]["place"] is None


def test_two_tables_fit_80_columns(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = command("2048", "5376", "43008", "--arch", "h200-sxm", "--count", "3").stdout.splitlines()
    rows = [line.split() for line in lines if line.split()[:1] in (["1"], ["2"], ["3"])]

    assert max(map(len, lines)) <= 80
    assert [row[0] for row in rows] == ["1", "2", "3"] * 2
    assert "clus-" in " ".join(lines)
    assert all("x" in row[4] for row in rows[:3])  # no tile is folded
    assert [len(row) for row in rows[3:]] == [9, 9, 9]

    monkeypatch.setenv("COLUMNS", "240")
    wide = command("2048", "5376", "43008", "--arch", "h200-sxm", "--count", "3").stdout.splitlines()
    assert sum(line.split()[:1] == ["1"] for line in wide) == 1


def test_the_command_times_every_config(command: Any) -> None:
    done = command("1", "4096", "4096", "--arch", "h200-sxm", "--group-size", "128", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)

    assert document["gemm"]["bytes_moved"] == 4096 * 4096 // 2 + 2 * 32 * 4096 + 2 * 2 * 4096
    assert document["num_kernels"] == len(document["kernels"]) > 50
    assert [kernel["place"] for kernel in document["kernels"]] == list(range(1, document["num_kernels"] + 1))
    assert [choice["by"] for choice in document["choices"]] == ["cost model"]
    assert all(choice["latency_us"] > 0 for choice in document["choices"])


def test_sizes_may_be_options(command: Any) -> None:
    done = command("--m", "16", "--k", "512", "--n", "256", "--group-size", "-1", "--dtype", "bf16", "--count", "3")

    assert done.exit_code == 0, done.output
    assert "M 16, N 256, K 512, bf16 x int4 (scales: column) on h200-sxm" in done.output


def test_another_arch_is_said_to_be_another(command: Any) -> None:
    assert "--arch h100-sxm is not this GPU, h200-sxm" in command("1", "256", "256", "--arch", "h100-sxm").output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["1", "4096"], "sizes are M K N, or by name -m M -k K -n N; got 2: 1 4096"),
        (["1", "4096", "4096", "--k", "64"], "sizes are M K N or have names, never both: got 1 4096 4096 and -k"),
        (["-m", "1", "-k", "4096"], "-n must be given, too"),
        (["0", "4096", "4096"], "M must be an integer >= 1, got 0"),
        (["1", "4096", "4100"], "N must be a multiple of 8, at least 8, got 4100"),
        (["1", "x", "4096"], "K must be a multiple of 8, at least 8, got 'x'"),
        (["1", "4096", "4096", "--group-size", "16"], "--group-size must be 32, 64, 128 or -1, got 16"),
        (["1", "64", "64", "--group-size", "-1", "--zero-points"], "128 with --zero-points, got -1"),
        (["1", "64", "64", "--arch", "demo-8core"], "demo-8core"),
    ],
)
def test_wrong_words_are_refused_before_a_gpu_is_looked_for(args: list[str], message: str) -> None:
    refused = CliRunner().invoke(app, ["profile", *args])

    assert refused.exit_code == 2
    assert message in refused.output


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemm_eval.device import bench

    def fail() -> None:
        raise GemmEvalError("measuring needs an NVIDIA GPU, found none")

    monkeypatch.setattr(bench, "import_cupy", fail)
    refused = CliRunner().invoke(app, ["profile", "1", "4096", "4096"])

    assert refused.exit_code == 2
    assert "error: measuring needs an NVIDIA GPU, found none" in refused.output
