"""`benchmarks.compare`: engines on the same GEMMs are checked, timed in turn and summed up; its tables and document."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks.command import run as run_command
from benchmarks.compare import __main__ as command
from benchmarks.compare import operands, side_by_side
from benchmarks.compare.engines import Engine
from benchmarks.compare.operands import Gemm, Grid, Layer, Operands, Weights
from benchmarks.compare.side_by_side import (
    ENGINES,
    SideBySide,
    compare_engines,
)
from gemm_eval.device import TimingProtocol
from gemm_eval.kernels import WeightMode, dequantize
from tests.measure.fake_runner import FakeRunner

GRID = Grid.dense(((64, 128), (128, 256)), rows=(1, 40), group_size=64)
LAYERS = (Layer("wide", 4, 4, 2, 64, 256), Layer("one-of-eight", 2, 16, 4, 128, 64))
EXPERTS = Grid(LAYERS, rows=(40, 1), group_size=32)
PROTOCOL = TimingProtocol(cold_bytes=1, l2_multiple=0, num_replays=3, max_short_rows=0)
Us = Callable[[Gemm], float]


class FakeDevice(FakeRunner):
    """A GPU that is none: arrays of numpy, and a clock that calls advance."""

    cupy = np

    def __init__(self) -> None:
        super().__init__()
        self.num_freed = 0

    @property
    def stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    def empty_bytes(self, num_bytes: int) -> Any:
        return np.empty(-(-num_bytes // 256) * 256, np.uint8)

    def fill_normal(self, buffer: Any, seed: int, *, is_bf16: bool) -> None:
        values = np.random.default_rng(seed).normal(size=buffer.nbytes // 2).astype(np.float32)
        buffer.view(np.uint16)[...] = _bits(values, np.dtype("u2" if is_bf16 else "f2"))

    def free_unused(self) -> None:
        self.num_freed += 1


class FakeEngine(Engine[Any]):
    """Multiplies each group in fp32 on the CPU, and takes as long as `us` says."""

    name: ClassVar[str] = "ours"
    us: ClassVar[Us]
    is_wrong: ClassVar[bool] = False

    def describe(self) -> str:
        return f"{self.name} 1.0"

    def pack(self, experts: Any) -> Any:
        return [one.dense() for one in experts]

    def copy(self, packed: Any) -> Any:
        return [one.copy() for one in packed]

    def num_bytes(self, packed: Any) -> int:
        return sum(int(one.nbytes) for one in packed)

    def config(self, gemm: Gemm) -> str:
        return f"{self.name} tile"

    def call(self, gemm: Gemm, packed: Any, offsets: Any, on_gpu: Any) -> Any:
        a, c = self.arrays(gemm)
        device: Any = self.device
        assert on_gpu is None if not gemm.layer.is_grouped else (on_gpu == offsets).all()
        products: list[Any] = []

        def enqueue() -> None:
            for group in range(0 if products else len(packed)):  # the first time; A stays as it is
                rows = slice(offsets[group], offsets[group + 1])
                w = packed[group - 1] if self.is_wrong else packed[group]  # of its neighbour, or twice too large
                products.append((rows, _bits((1 + self.is_wrong) * _floats(a[rows]) @ _floats(w).T, c.dtype)))
            for rows, product in products:
                c.view(np.uint16)[rows] = product
            device.now_us += type(self).us(gemm)

        return enqueue


def _floats(stored: Any) -> Any:
    if stored.dtype == np.float16:
        return stored.astype(np.float32)
    return (stored.astype(np.uint32) << 16).view(np.float32)


def _bits(values: Any, dtype: Any) -> Any:
    values = values.astype(np.float32)
    return values.astype(np.float16).view(np.uint16) if dtype == np.float16 else values.view(np.uint32) >> 16


def fake(name: str, us: Us | float, *, is_wrong: bool = False) -> type[FakeEngine]:
    """Make an engine that takes so many us for a GEMM."""
    times = us if callable(us) else lambda gemm: us
    return type(name, (FakeEngine,), {"name": name, "us": staticmethod(times), "is_wrong": is_wrong})


OURS = fake("ours", 10.0)
HUMMING = fake("humming", lambda gemm: 8.0 if gemm.tokens == 40 else 20.0)
CUBLAS = fake("cublas", lambda gemm: 30.0 if gemm.layer.N == 64 else 12.0)


def run(engines: list[type[FakeEngine]], grid: Grid = GRID, **options: Any) -> SideBySide:
    device: Any = FakeDevice()
    result = compare_engines(device, engines, grid, protocol=PROTOCOL, progress=False, sleep=lambda _: None, **options)
    assert device.num_freed == len(grid.layers)
    return result


@pytest.mark.parametrize("grid", [GRID, EXPERTS], ids=["dense", "experts"])
def test_engines_are_timed_on_every_gemm(grid: Grid) -> None:
    seen: list[int] = []
    result = run([OURS, HUMMING, CUBLAS], grid, on_layer=lambda so_far: seen.append(len(so_far.timings)))
    assert seen == [6, 12]
    assert not result.failures
    assert result.engines == {"ours": "ours 1.0", "humming": "humming 1.0", "cublas": "cublas 1.0"}
    assert {row[:3] for row in result.timings} == {(one.N, one.K, m) for one in grid.layers for m in (1, 40)}
    for row in result.timings:
        assert row.num_replays == 3
        assert 0 < row.relative_error < 2e-3
    (row,) = [row for row in result.timings if (row.N, row.M, row.engine) == (128, 40, "humming")]
    assert row.latency_us == pytest.approx(8.0, rel=0.01)
    assert row.config == "humming tile"


@pytest.mark.parametrize("grid", [GRID, EXPERTS], ids=["dense", "experts"])
def test_a_wrong_engine_is_not_timed(grid: Grid) -> None:
    result = run([OURS, fake("humming", 1.0, is_wrong=True)], grid)
    assert {row.engine for row in result.timings} == {"ours"}
    assert len(result.failures) == 4
    assert all("its result is wrong: relative error " in failure.error for failure in result.failures)


@pytest.mark.parametrize("mode", [mode.name.lower() for mode in WeightMode])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_engine_gets_the_same_weights(dtype: str, mode: str) -> None:
    """What ours packs is what cuBLAS has in 16 bits, and what a reference takes exactly."""
    device: Any = FakeDevice()
    grid = Grid.dense(((128, 256),), rows=(1,), dtype=dtype, mode=mode)
    (gemm,) = grid.gemms(grid.layers[0])
    weights = Weights.random(device, gemm)
    ours = ENGINES["ours"](device, Operands(device, gemm.activation, 256, 128), PROTOCOL)
    exact = weights.columns(np.arange(128))
    np.testing.assert_array_equal(dequantize(ours.pack([weights])[0]), exact)
    np.testing.assert_allclose(_floats(weights.dense()).T, exact, rtol=1e-3 if dtype == "fp16" else 8e-3)
    assert set(np.unique(weights.codes)) == set(range(16))
    assert exact.std() < 0.1  # products of normal activations stay far from the largest fp16


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on engines that are none; returns its exit code, stdout and stderr."""
    dense = {"ours": OURS, "humming": fake("humming", lambda gemm: 9.0 if gemm.tokens == 320 else 20.0),
             "cublas": fake("cublas", 30.0), "tinygemm": fake("tinygemm", 50.0)}  # fmt: skip
    dense["tinygemm"].largest_rows = 64
    dense["cublas"].why_missing = classmethod(lambda cls: "no cuBLAS: pip install it")  # type: ignore[method-assign, assignment]
    grouped = {
        name: fake(name, lambda gemm, us=us: us if gemm.tokens > 1 else 10.0)  # type: ignore[misc]
        for name, us in (("ours", 10.0), ("humming", 12.0), ("one-launch-a-group", 30.0))
    }
    monkeypatch.setattr(side_by_side, "ENGINES", dense)
    monkeypatch.setattr(side_by_side, "GROUPED_ENGINES", grouped)
    monkeypatch.setattr(operands, "EXPERT_LAYERS", LAYERS)
    monkeypatch.setattr(command, "make_device", lambda engines: FakeDevice())
    monkeypatch.setattr(
        command, "compare_engines", partial(compare_engines, protocol=PROTOCOL, sleep=lambda _: None, progress=False)
    )
    monkeypatch.setenv("COLUMNS", "80")

    def run_words(*words: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as exit_:
            run_command(command.app, words)
        return exit_.value.code, *capsys.readouterr()

    return run_words


WORDS = ("--pair", "64,256", "--pair", "128,256", "--group-size", "64", "--rows", "1,320")


def test_tables_fit_80_columns(compare: Any) -> None:
    code, out, err = compare(*WORDS)
    lines = out.splitlines()
    assert code == 0, err
    assert max(map(len, lines)) <= 80
    assert "cublas is left out: no cuBLAS: pip install it" in err
    (row,) = [line.split() for line in lines if line.split()[:1] == ["320"]]
    assert row == ["320", "0.90", "0.90", "256", "x", "64", "-"]
    (row,) = [line.split() for line in lines if line.startswith("M <= 16")]
    assert row[3:] == ["2", "2.00", "(2.00)", "5.00", "(5.00)"]
    assert "Below 0.97: humming 2 of 4, tinygemm 0 of 2" in lines
    (row,) = [line.split() for line in lines if line.startswith("0.900") and " 128 " in line]
    assert row[:7] == ["0.900", "humming", "256", "128", "320", "10.00", "9.000"]

    code, out, _ = compare("--grouped", "--group-size", "32", "--rows", "1,40")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    (row,) = [line.split() for line in lines if line.split()[:1] == ["40"]]
    assert row[:3] == ["40", "1.20", "1.20"]
    assert row[6] == "3.00"
    assert "Below 0.97: humming 0 of 4, one launch a group 0 of 4" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--grouped --pair 64,64", "--grouped does not go with --pair"),
        ("--grouped --layer no", "--layer must be one of mixtral-8x7b-up, "),
        ("--grouped --engine cublas", "--engine must be one of ours, humming, one-launch-a-group with --grouped"),
        ("--layer mixtral-8x7b-up", "--layer and --routing go with --grouped"),
        ("--routing busy", "--layer and --routing go with --grouped"),
        ("--grouped --routing none", "--routing must be one of uniform, power-law, busy, got 'none'"),
        ("--pair 4096", "--pair must be K,N such as 4096,12288, got '4096'"),
        ("--pair 100,4096", "K a multiple of 128 and N of 8, got 100,4096"),
        ("--rows 1,x", "or 1..256:32, got 'x' in '1,x'"),
        ("--rows 0", "got"),
        ("--engine marlin", "--engine must be one of ours, humming, cublas, tinygemm, got 'marlin'"),
        ("--group-size 0", "group_size must be one of 32, 64, 128 in mode group, got 0"),
        ("--mode int3", "mode must be one of column, group, group_zero, mxfp4, nvfp4, got 'int3'"),
        ("--activation fp8", "--activation must be one of fp16, bf16, got 'fp8'"),
        ("--out x.txt", "--out must end with .parquet or .csv, got 'x.txt'"),
    ],
)
def test_wrong_words_are_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run_command(command.app, words.split())
    err = capsys.readouterr().err
    assert exit_.value.code == 2
    assert message in err
    assert len(err.splitlines()) == 1
