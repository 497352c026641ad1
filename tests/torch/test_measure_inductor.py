"""`benchmarks/measure_inductor.py` without a GPU: its files and figures by a fake bench, its compiling on the CPU."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks import measure_inductor
from benchmarks.inductor_layers import LAYERS, Layer, models
from benchmarks.measure_inductor import Compiled, Table, measure, summary


class FakeBench:
    """Compiles in no time: all candidates in 10 s, those that stay in `pruned_s`; the first layer is slower by 2%."""

    def __init__(self, pruned_s: float = 2.5, dies_at: str = "", error: float = 0.001) -> None:
        self.pruned_s, self.dies_at, self.error = pruned_s, dies_at, error
        self.compiled: list[tuple[str, int | None]] = []

    def compile_model(self, layers: Sequence[Layer], top_k: int | None) -> Compiled:
        model = layers[0].model
        if model == self.dies_at:
            raise KeyboardInterrupt
        self.compiled.append((model, top_k))
        is_pruned = top_k is not None
        count = 22 if top_k is None else 1 + top_k
        return Compiled(
            self.pruned_s if is_pruned else 10.0, [(layer, is_pruned) for layer in layers], ["mm"] * len(layers),
            [{"M": layer.M, "choice": "mm", "inductor_us": 1.0} for layer in layers], count * len(layers),
            [self.error] * len(layers),
        )  # fmt: skip

    def times_us(self, runs: Sequence[Any]) -> list[float]:
        return [102.0 if is_pruned and layer == LAYERS[0] else 100.0 for layer, is_pruned in runs]


def test_forty_layers_of_ten_models_few_tokens_to_many() -> None:
    assert len(LAYERS) == len(set(LAYERS)) == 40
    assert [layer.model for layer in LAYERS] == [name for name in models() for _ in range(4)]
    assert len(models()) == 10
    tokens = [layer.M for layer in LAYERS]
    assert (min(tokens), max(tokens)) == (16, 4096)
    assert {tokens.count(number) for number in set(tokens)} == {4}
    assert any(layer.has_bias for layer in LAYERS)


def test_all_models_in_turns_and_what_must_hold(tmp_path: Path) -> None:
    bench = FakeBench()

    assert measure(bench, tmp_path, models(), [3], 1e9) == []

    assert bench.compiled[:4] == [(models()[0], None), (models()[0], 3), (models()[1], 3), (models()[1], None)]
    assert len(Table(tmp_path / "layers.csv").rows()) == 40
    assert len(Table(tmp_path / "compile.csv").rows()) == 10
    assert len(Table(tmp_path / "candidates.csv").rows()) == 80
    said = summary(tmp_path).splitlines()
    assert said[0] == "top_k = 3: 40 layers of 10 models"
    assert "compiled in 25.0 s instead of 100.0: 25.0%, by model 25.0% to 25.0%; 160 candidates instead of 880" in said
    assert "speed: geometric mean 99.95%, worst 98.04% (llama-3-8b qkv); 40 choices are the same" in said
    assert "0 layers have no candidate left but the library's, which is not timed" in said
    assert sum(line.startswith("holds: ") for line in said) == 4


def test_what_fails_is_said(tmp_path: Path) -> None:
    measure(FakeBench(pruned_s=3.5, error=0.02), tmp_path, models(), [3], 1e9)

    failed = [line for line in summary(tmp_path).splitlines() if line.startswith("FAILS")]
    assert failed == ["FAILS: compile time at most 30%", "FAILS: errors at most 0.01"]


def test_a_run_that_was_cut_off_keeps_what_it_has_and_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(FakeBench(dies_at=models()[2]), tmp_path, models(), [3], 1e9)
    assert summary(tmp_path).startswith("top_k = 3: 8 layers of 2 models")

    bench = FakeBench()
    assert measure(bench, tmp_path, models(), [3], 1e9) == []
    assert {model for model, _ in bench.compiled} == set(models()[2:])
    assert summary(tmp_path).startswith("top_k = 3: 40 layers of 10 models")


def test_no_model_is_begun_that_might_not_end_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 40.0, 40.0, 80.0, 80.0])  # a model takes 40 s
    monkeypatch.setattr(measure_inductor.time, "monotonic", lambda: next(clock))

    assert measure(FakeBench(), tmp_path, models(), [3], 100.0) == models()[2:]


def test_show_needs_no_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure_inductor.main(["--out", str(tmp_path), "--show"])
    assert "nothing is measured" in capsys.readouterr().out
    measure(FakeBench(), tmp_path, models()[:1], [3], 1e9)
    capsys.readouterr()
    measure_inductor.main(["--out", str(tmp_path), "--show"])
    assert capsys.readouterr().out.startswith("top_k = 3: 4 layers of 1 models")


class FakeEvent:
    """A CUDA event: replays take 40 us each."""

    replays = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0

    def record(self) -> None:
        self.at = FakeEvent.replays

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: FakeEvent) -> float:
        return 40e-3 * (end.at - self.at)


def test_a_burst_of_replays_is_long_and_its_time_that_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch")
    from benchmarks import inductor_bench

    def replay() -> None:
        FakeEvent.replays += 1

    calls: list[int] = []
    nothing = contextlib.nullcontext
    for name, value in {
        "Stream": mock.MagicMock(), "stream": lambda _: nothing(), "current_stream": mock.MagicMock(),
        "CUDAGraph": lambda: mock.Mock(replay=replay), "graph": lambda _: nothing(), "synchronize": lambda: None,
        "Event": FakeEvent,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    bench = mock.Mock(device="cuda")

    run = inductor_bench.GpuBench._run(bench, lambda: calls.append(1), 8)
    assert len(calls) == 2  # before, and into the graph
    before = FakeEvent.replays
    assert run() == pytest.approx(5.0)
    assert (FakeEvent.replays - before) * 40.0 == pytest.approx(inductor_bench._LEAST_BURST_US, rel=0.02)


def test_inductors_candidates_are_named_by_their_tiles() -> None:
    pytest.importorskip("torch", reason="torch is not installed: make test-torch")
    pytest.importorskip("triton", reason="triton is not installed: make test-torch")
    import torch

    from benchmarks import inductor_bench
    from tests.torch.inductor_without_gpu import columns, fake_gpu, lower, rows

    with fake_gpu():
        (choices,) = lower(torch.mm, rows(512, 4096), columns(4096, 6144))
    recorder = inductor_bench.Recorder()
    timings = {choice: 1.0 + i for i, choice in enumerate(reversed(choices))}
    recorder(timings, "mm", choices[-1].input_nodes, choices, lambda: {}, {})
    rows_found = list(recorder.rows())

    assert len({row["choice"] for row in rows_found}) == len(choices)
    assert rows_found[-1] == {"M": 512, "N": 6144, "K": 4096, "choice": "mm", "inductor_us": 1e3 * len(choices)}
    layer = Layer("any", "any", 512, 6144, 4096, False)
    assert recorder.choice(layer) == rows_found[0]["choice"]
    assert re.fullmatch(r"triton_mm \d+x\d+x\d+ \d+ warps \d+ stages", rows_found[0]["choice"])
    assert recorder.choice(layer._replace(M=511)) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_layers_are_compiled_from_nothing_and_checked_on_the_cpu() -> None:
    pytest.importorskip("torch", reason="torch is not installed: make test-torch")
    from benchmarks.inductor_bench import GpuBench

    bench = GpuBench("cpu", "h100-sxm")
    layers = [Layer("a", "qkv", 16, 64, 32, False), Layer("a", "out", 8, 32, 64, True)]
    every, pruned = (bench.compile_model(layers, top_k) for top_k in (None, 3))

    for one in (every, pruned):
        assert len(one.runs) == len(one.choices) == len(one.errors) == 2
        assert 0 < max(one.errors) < measure_inductor.LARGEST_ERROR
        assert one.compile_s > 0
    times = bench.times_us([every.runs[0], pruned.runs[0]])
    assert len(times) == 2
    assert min(times) > 0
