"""Our kernels under the timing framework: what is chosen, checked, given up, resumed and written."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gemm_eval import measure
from gemm_eval.arch import GpuSpec, data_root, load_arch, read_yaml
from gemm_eval.cli.app import app
from gemm_eval.device import measure_floor_us
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.kernels import WeightMode
from gemm_eval.measure import w4a16
from gemm_eval.measure.data_set import columns_for
from gemm_eval.measure.shapes import KernelItem
from gemm_eval.validation import tables
from tests.kernels.fake_kernels import BUILT, FakeKernelRunner, bare_runner, config, item
from tests.measure.fake_runner import FakeRunner

H200 = load_arch("h200-sxm", GpuSpec)
ITEMS = [item(rows, cta_m=cta_m) for rows in (16, 300) for cta_m in (16, 32, 128)]
FIRST = (0,)
SETS = list(read_yaml(data_root() / "shapes.yaml")["spreads"])


def campaign(folder: Path, runner: Any, **settings: Any) -> measure.Campaign:
    protocol = measure.TimingProtocol.quick(idle_s=0.0)
    return measure.Campaign(runner, protocol, folder, "gpu-w4a16-fp16", [].append, with_trace=False, **settings)


# ---- which GEMMs, which kernels -------------------------------------------------------------------------------------


def test_sets_have_the_problems_that_they_promise() -> None:
    zoo, spread = measure.list_quant_shapes("w4a16"), measure.list_quant_shapes("w4a16-spread")

    assert len(zoo) == len(set(zoo)) == 168
    assert len({(gemm.N, gemm.K) for gemm in zoo}) == 12
    assert {min(gemm.M for gemm in zoo), max(gemm.M for gemm in zoo)} == {1, 8192}
    assert len(spread) >= 40
    assert set(spread) < set(zoo)
    assert len({(gemm.N, gemm.K) for gemm in spread}) == 12
    assert len({gemm.M for gemm in spread}) == 14
    assert len(measure.list_quant_shapes("w4a16-check")) == 24
    assert {(gemm.mode, gemm.group_size) for gemm in measure.list_quant_shapes("w4a16-modes")} == {
        (WeightMode.GROUP, 32), (WeightMode.GROUP, 64), (WeightMode.COLUMN, 0), (WeightMode.GROUP_ZERO, 128),
    }  # fmt: skip
    assert {(gemm.mode, gemm.group_size) for gemm in measure.list_quant_shapes("w4a16-fp4")} == {
        (WeightMode.MXFP4, 32), (WeightMode.NVFP4, 16),
    }  # fmt: skip
    pairs = {name: {(gemm.N, gemm.K) for gemm in measure.list_quant_shapes(name)} for name in SETS}
    looked_at = pairs.pop("w4a16-few-waves")  # timed to learn why, fitted on by nothing
    assert len(looked_at) == 4
    for blind, num in (("w4a16-blind", 24), ("w4a16-blind-2", 32), ("w4a16-full", 14), ("w4a16-full-3", 16)):
        assert len(pairs[blind]) == num
        assert all(pairs[blind].isdisjoint(pairs[name]) for name in pairs if not name.startswith(blind))
    assert pairs["w4a16-blind"].isdisjoint(pairs["w4a16-blind-2"])
    with pytest.raises(InvalidOptionError, match="got 'model-zoo'"):
        measure.list_quant_shapes("model-zoo")


def test_all_configs_or_the_promising_ones_and_a_few_others() -> None:
    gemms = measure.list_quant_shapes("w4a16-smoke")
    every = measure.list_items(gemms, "fp16", H200, measure.Choice())
    some = measure.list_items(gemms, "fp16", H200, measure.Choice(15, 10))

    assert len(every) == len(set(every)) > len(some)
    assert set(some) < set(every)
    assert [len([x for x in some if m == x.M]) for m in (1, 64)] == [25, 25]
    assert some == measure.list_items(gemms, "fp16", H200, measure.Choice(15, 10))
    assert some[0].config == every[0].config
    tiles = [(x.config[:3], x.config.schedule, x.config.split_k) for x in some[:15]]
    assert max(tiles.count(tile) for tile in tiles) <= 6


# ---- data -----------------------------------------------------------------------------------------------------------


# ---- the runner ------------------------------------------------------------------------------------------------------


RUNNER_KINDS = [
    (WeightMode.GROUP, 128), (WeightMode.GROUP_ZERO, 32), (WeightMode.COLUMN, 0), (WeightMode.MXFP4, 32),
    (WeightMode.NVFP4, 16),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("kind", RUNNER_KINDS)
def test_the_runner_checks_what_it_binds(
    monkeypatch: pytest.MonkeyPatch, kind: tuple[WeightMode, int], dtype: str
) -> None:
    runner = bare_runner(monkeypatch, dtype)
    good = item(mode=kind[0], group_size=kind[1])
    wrong = good._replace(config=config(cta_m=999))
    runner.allocate([good, wrong], 1 << 20)

    stride = runner.weight_bytes(good)
    assert len(runner.bind(good, (0, stride))) == 2
    assert runner.built(good)[:3] == ("entry", 1, 4)
    assert runner.built(good).ctas_per_sm == 2
    with pytest.raises(GemmEvalError, match=r"w4a16 .* is wrong for M, K, N = 16, 256, 128, .* CTA 999x128x64"):
        runner.bind(wrong, FIRST)
    with pytest.raises(GemmEvalError, match="not what was bound last"):
        runner.built(good)


def test_the_check_takes_each_family_and_kind_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = bare_runner(monkeypatch)
    runner.allocate([item(), item(300), item(mode=WeightMode.COLUMN, group_size=0)], 1 << 20)
    errors = runner.check()

    assert set(errors) == {"w4a16_sm90 group 128", "w4a16_sm90 column 0"}
    assert max(errors.values()) < 1e-3
    assert runner.bind(item(), FIRST)  # the pools are random again


# ---- the read ceiling ------------------------------------------------------------------------------------------------


START = 1 << 40


class ReadingRunner(FakeKernelRunner):
    """Reads of a pool; a kernel must not be bound."""

    l2_bytes = 1 << 15

    def __init__(self, weight_bytes: int, pool_bytes: int) -> None:
        super().__init__()
        self.num_bytes, self.pool_bytes = weight_bytes, pool_bytes
        self.buffers = {"W": SimpleNamespace(nbytes=pool_bytes, data=SimpleNamespace(ptr=START))}
        self.reads: list[tuple[int, int]] = []

    def weight_bytes(self, shape: Any) -> int:
        return self.num_bytes

    def bind(self, shape: Any, weight_offsets: Any) -> Any:
        raise AssertionError("no kernel is wanted")

    def read_bytes(self, address: int, num_bytes: int) -> None:
        self.reads.append((address - START, num_bytes))
        self.now_us += num_bytes / 1000.0


@pytest.mark.parametrize("weight_bytes", [4096, 4096 + 24])
def test_the_ceiling_reads_as_many_bytes_as_weights_have(weight_bytes: int) -> None:
    runner = ReadingRunner(weight_bytes, 1 << 18)
    protocol = measure.TimingProtocol(cold_bytes=1 << 17)
    floor_us = measure_floor_us(runner)
    read_us = w4a16.measure_read_us(runner, item(), protocol, floor_us=floor_us)  # type: ignore[arg-type]
    num_bytes = weight_bytes

    assert read_us == pytest.approx(num_bytes / 1000.0)
    assert {count for _, count in runner.reads} == {num_bytes}
    starts = sorted({start for start, _ in runner.reads})
    assert all(start % 256 == 0 and start + num_bytes <= runner.pool_bytes for start in starts)
    assert all(after - before >= num_bytes for before, after in itertools.pairwise(starts))
    assert len(starts) * weight_bytes > protocol.cold_bytes  # more than fits where they should not stay
    assert "flush" in runner.log


# ---- campaigns -------------------------------------------------------------------------------------------------------


def test_a_campaign_writes_configs_builds_and_ranks(tmp_path: Path) -> None:
    path = campaign(tmp_path, FakeKernelRunner(), plan="all").run(ITEMS)
    frame = measure.read_timings(path)
    meta = yaml.safe_load(path.with_suffix(".meta.yaml").read_text())

    assert set(frame.columns) == set(columns_for(KernelItem))
    assert len(frame) == len(ITEMS)
    row = frame[(frame["M"] == 16) & (frame["cta_m"] == 128)].iloc[0]
    assert (row["rank"], row["num_replays"], row["schedule"], row["mode"]) == (2, 1, "cooperative", "group")
    assert (row["spill_bytes"], row["ctas_per_sm"], row["kernel_hash"]) == (0, 2, BUILT.kernel_hash)
    assert sorted(frame["rank"]) == [0, 0, 1, 1, 2, 2]
    assert meta["has_all_candidates"] is True
    assert (meta["library"], meta["plans"]) == ("gemm-eval", ["all"])
    assert meta["protocol"]["give_up_ratio"] == 2.0
    (timings,) = tables.read_timings(path)
    assert (timings.library, len(timings)) == ("gemm-eval", 2)


class DescribingRunner(FakeKernelRunner):
    """As the real one, it says how long reads take."""

    def describe(self) -> dict[str, Any]:
        return {"library": "gemm_eval", "single_pass_read_us": {"128 x 256": 1.25, "4096 x 4096": 4.5}}


def test_reads_of_the_meta_file_stand_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gemm_eval.cli.measure_run import print_comparison

    modes = [item(mode=WeightMode.GROUP, group_size=32), item(mode=WeightMode.COLUMN, group_size=0)]
    other = item()._replace(N=192)
    path = campaign(tmp_path, DescribingRunner()).run([item(), *modes, other])
    compared = {
        (gemm.N, gemm.mode, gemm.group_size): gemm for gemm in measure.compare_kernels(path, None, "l4", "fp16")
    }

    assert compared[128, "group", 128].read_us == 1.25
    assert compared[192, "group", 128].read_us is None  # not measured
    assert compared[128, "group", 32].read_us is None is compared[128, "column", -1].read_us  # of other bytes
    path.with_suffix(".meta.yaml").unlink()
    assert all(gemm.read_us is None for gemm in measure.compare_kernels(path, None, "l4", "fp16"))
    print_comparison([compared[128, "group", 128]])
    assert "1.25" in capsys.readouterr().out


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_measures_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemm_eval import measure

    runner = FakeKernelRunner()
    monkeypatch.setattr(measure, "W4A16Runner", lambda dtype: runner)
    monkeypatch.setattr(measure, "make_runner", lambda kernel, dtype: FakeRunner(20.0))
    command = ["measure", "--out", str(tmp_path), "--kernel", "w4a16", "--set", "w4a16-smoke", "--quick", "--top", "2"]
    done = CliRunner().invoke(app, command)

    assert done.exit_code == 0, done.output
    assert (tmp_path / "h200-sxm-w4a16-fp16-quick.parquet").exists()
    assert (tmp_path / "h200-sxm-w4a16-cublas-fp16-quick.parquet").exists()
    assert "Our best kernel" in done.output
