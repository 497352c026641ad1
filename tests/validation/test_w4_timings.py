"""The timings of our kernels that come with the library are whole."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.arch.limits import limits_of_spec
from gemm_eval.kernels import Sizes
from gemm_eval.kernels.families import family_of
from gemm_eval.kernels.registry import legal_configs, make_variant, why_not
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.measure import compare_kernels, list_quant_shapes, read_timings
from gemm_eval.measure.data_set import COLUMNS, KERNEL_COLUMNS
from gemm_eval.validation import tables
from gemm_eval.validation.tables import measured_root

H200 = limits_of_spec(load_arch("h200-sxm", GpuSpec))
FOLDER = measured_root("h200-sxm") / "w4a16"
PATH = FOLDER / "fp16.parquet"
NUMBERS = {name for name, kind in KERNEL_COLUMNS.items() if kind == "Int64"}


class Gemm(NamedTuple):
    sizes: Sizes
    mode: str
    group_size: int | None


class Table(NamedTuple):
    frame: Any
    gemms: dict[Gemm, dict[KernelConfig, dict[Any, Any]]]  # rows


def config_of(row: dict[Any, Any]) -> KernelConfig:
    names = {"schedule": Schedule, "decomposition": Decomposition, "raster_order": RasterOrder}
    values = {name: names[name][row[name].upper()] if name in names else row[name] for name in KernelConfig._fields}
    return KernelConfig(**{name: int(value) if name in NUMBERS else value for name, value in values.items()})


@pytest.fixture(scope="module")
def table() -> Table:
    pytest.importorskip("pyarrow")
    frame = read_timings(PATH)
    gemms: dict[Gemm, dict[KernelConfig, dict[Any, Any]]] = {}
    for row in frame.to_dict("records"):
        gemm = Gemm(
            Sizes(row["M"], row["K"], row["N"]), row["mode"], row["group_size"] if row["group_size"] > 0 else None
        )
        rows, config = gemms.setdefault(gemm, {}), config_of(row)
        assert config not in rows, (gemm, config)
        rows[config] = row
    return Table(frame, gemms)


def test_the_table_has_the_gemms_of_its_sets_and_kernels_of_the_registry(table: Table) -> None:
    promised = list_quant_shapes("w4a16")
    assert len(table.gemms) >= 120
    assert set(table.gemms) == {
        Gemm(Sizes(shape.M, shape.K, shape.N), shape.mode.name.lower(), shape.group_size or None) for shape in promised
    }
    assert min(len(rows) for rows in table.gemms.values()) >= 8
    for gemm, rows in table.gemms.items():
        legal = legal_configs(gemm.sizes, H200, "fp16", gemm.mode, gemm.group_size)
        strangers = rows.keys() - set(legal)
        assert not strangers, (gemm, next(iter(strangers)))


def test_a_kernel_is_compiled_once_and_spills_nothing(table: Table) -> None:
    builds: dict[Any, set[tuple[Any, ...]]] = {}
    for gemm, rows in table.gemms.items():
        for config, row in rows.items():
            unsplit = family_of(config).compiled(config)
            build = row["kernel_hash"], row["registers"], row["smem_bytes"], row["ctas_per_sm"]
            builds.setdefault((unsplit, gemm.mode, gemm.group_size), set()).add(build)
    assert not table.frame["spill_bytes"].any()
    assert {len(found) for found in builds.values()} == {1}
    hashes = {build[0] for found in builds.values() for build in found}
    assert all(len(digits) == 16 and int(digits, 16) >= 0 for digits in hashes)
    for config, mode, group_size in builds:
        assert why_not(make_variant(config, "fp16", mode, group_size), None, H200) is None


def test_columns_are_whole_and_described(table: Table) -> None:
    frame, readme = table.frame, (PATH.parents[2] / "README.md").read_text() + str(tables.__doc__)
    grouped = {*KernelConfig._fields, "grid_y", "grid_z"}  # as `cta_m` .. `raster_swizzle` and `grid_x/y/z`
    assert set(frame.columns) == COLUMNS.keys() | KERNEL_COLUMNS.keys()
    assert not frame.isna().any().any()
    for name in set(frame.columns) - grouped:
        assert name in readme, name
    assert "(`family`, `cta_m` .. `raster_swizzle`)" in readme
    assert KernelConfig._fields[0] == "family"
    assert (frame["min_us"] <= frame["latency_us"] * (1 + 1e-9)).all()
    assert all(row.family.startswith(row.kernel) for row in frame.itertuples())
    assert set(frame["l2"]) == {"cold"}
    assert set(frame["clock"]) == {"burst"}


def test_ranks_follow_times(table: Table) -> None:
    for rows in table.gemms.values():
        ordered = sorted(rows.values(), key=lambda row: int(row["rank"]))
        assert [int(row["rank"]) for row in ordered] == list(range(len(rows)))
        assert all(np.diff([row["latency_us"] for row in ordered]) >= 0)
        assert ordered[0]["num_replays"] > 1  # the winner was measured in full


def test_the_meta_file_says_what_a_reader_needs(table: Table) -> None:
    meta = yaml.safe_load(PATH.with_name("fp16.meta.yaml").read_text())
    assert meta["num_rows"] == len(table.frame)
    assert meta["failed"] == []
    assert meta["has_all_candidates"] is True
    assert any("8 configs that the cost model finds fastest" in plan for plan in meta["plans"])
    reads = meta["runner"]["single_pass_read_us"]
    assert set(reads) == {f"{shape.N} x {shape.K}" for shape in list_quant_shapes("w4a16")}
    assert max(meta["check_relative_errors"].values()) < 1e-3


def test_no_kernel_beats_one_pass_over_its_weights(table: Table) -> None:
    """Where DRAM decides: times below the read would mean that weights were not cold."""
    compared = compare_kernels(PATH, FOLDER / "fp16-cublas.parquet", "h200-sxm", "fp16")
    few = [gemm for gemm in compared if gemm.read_us is not None and gemm.M <= 16]
    assert len(compared) == len(table.gemms)
    assert len(few) == 12 * 5
    assert all(gemm.best_us > 0.97 * gemm.read_us for gemm in few if gemm.read_us is not None)
    assert all(gemm.cublas_us is not None for gemm in compared)
