"""GEMMs drawn at random: their sizes and layouts, and how they are timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_eval.device import TimingProtocol
from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure import Campaign, DrawnShape, draw_shapes, read_timings
from tests.cli.commands import Ran
from tests.measure.fake_runner import FakeRunner


def test_a_seed_and_a_type_draw_the_same_gemms() -> None:
    drawn = draw_shapes(200, 1, "bf16")
    assert drawn == draw_shapes(200, 1, "bf16")
    assert len(set(drawn)) == 200
    assert not set(drawn) & {shape._replace(seed=1) for shape in draw_shapes(200, 2, "bf16")}
    assert {shape[:4] for shape in drawn} != {shape[:4] for shape in draw_shapes(200, 1, "fp16")}


def test_sizes_are_of_all_kinds() -> None:
    drawn = draw_shapes(1000, 1, "bf16")
    assert {shape.layout for shape in drawn} == {"tn", "nn", "nt"}
    assert 0.1 < sum(shape.G > 1 for shape in drawn) / 1000 < 0.3
    assert 0.05 < sum(shape.N % 2 for shape in drawn) / 1000 < 0.2
    for name, most in (("M", 9064), ("K", 16064), ("N", 18064)):
        sizes = sorted(getattr(shape, name) for shape in drawn)
        assert sizes[0] <= 16 < most // 2 < sizes[-1] <= most
        assert sizes[500] < most // 20  # log-uniform


@pytest.mark.parametrize(("dtype", "multiple"), [("fp8", 16), ("fp8-full", 16), ("int8", 8)])
def test_narrow_types_have_what_torch_takes(dtype: str, multiple: int) -> None:
    drawn = draw_shapes(300, 1, dtype)
    assert {(shape.layout, shape.G, shape.K % multiple, shape.N % multiple) for shape in drawn} == {("tn", 1, 0, 0)}
    assert min(shape.M for shape in drawn) >= (17 if dtype == "int8" else 1)


def test_bad_counts_are_refused() -> None:
    for count, seed in ((0, 1), (3, -1)):
        with pytest.raises(InvalidOptionError, match="--draw must be >= 1 and --seed >= 0"):
            draw_shapes(count, seed, "bf16")


def test_a_data_set_has_layouts_and_seeds(tmp_path: Path) -> None:
    shapes = draw_shapes(5, 7, "fp16")
    protocol = TimingProtocol.quick(l2="cold-all", num_short_replays=1, num_replays=1, idle_s=0.0)
    for _ in range(2):  # the second goes on with the work file of the first
        path = Campaign(FakeRunner(), protocol, tmp_path, "drawn", print, with_trace=False).run(shapes)
    table = read_timings(path)
    rows = table[["G", "M", "K", "N", "layout", "seed"]].itertuples(index=False, name=None)
    assert {DrawnShape(*row) for row in rows} == set(shapes)
    assert set(table["l2"]) == {"cold-all"}
    assert table["accumulate"].isna().all()


def test_the_command_lists_what_it_would_draw() -> None:
    printed = Ran("measure", "gpu", "--draw", "4", "--seed", "2", "--dtype", "tf32", "--out", "x", "--list")
    assert printed.out.splitlines()[0].split()[4] in ("tn", "nn", "nt")
    for words, text in (
        (("--kernel", "cublas", "--draw", "4"), "--draw needs --kernel torch"),
        (("--seed", "4"), "--seed"),
        (("--l2", "cold-all"), "--l2 cold-all needs --draw"),
    ):
        refused = Ran("measure", "gpu", "--out", "x", "--list", *words)
        assert refused.code == 2
        assert text in refused.err
