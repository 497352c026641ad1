"""The commands on files: `arch`, `configs` and `checkpoint`."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec, check_arch, list_archs
from gemm_eval.arch.paths import data_root
from gemm_eval.cli.render_arch import unit_of
from gemm_eval.kernels.config_cache import ConfigCache
from gemm_eval.kernels.config_records import ConfigRecord
from tests.cli.commands import Ran, chip_file
from tests.kernels.checkpoint_samples import GPTQ, make_layer, write_checkpoint

pytestmark = pytest.mark.usefixtures("compiled_kernels")


# arch


def test_arch_list_marks_what_is_coarse_and_keeps_names_whole() -> None:
    out = Ran("arch", "list").out

    assert (
        out.index("\nmulticore ") < out.index("\nwormhole-n150 ") < out.index("\ngpu ") < out.index("\na100-sxm-40gb ")
    )
    for name in list_archs():
        assert re.search(rf"^{re.escape(name)} ", out, flags=re.MULTILINE)
    assert set(re.findall(r"^(\S+) \*", out, flags=re.MULTILINE)) == {
        name for name in list_archs() if getattr(load_arch(name), "is_coarse", False)
    }
    assert re.search(r"^sg2260e +4 +65\.54 fp16 +273\.056 +64 ", out, flags=re.MULTILINE)


def test_arch_show_gives_unit_kind_and_source_of_every_number() -> None:
    for arch in ("h200-sxm", "demo-8core"):
        out = Ran("arch", "show", arch, columns=200).out
        for name, entry in load_arch(arch).provenance.items():
            (line,) = re.findall(rf"^{re.escape(name)} .*$", out, flags=re.MULTILINE)
            assert f"{entry.kind}: {entry.source}" in line
            assert arch == "h200-sxm" or f" {unit_of(name.split('.')[0])} " in line
    assert re.search(r"^vector_is_concurrent +true +default", out, flags=re.MULTILINE)
    assert re.search(r"^dram_sharing +fair +choice", out, flags=re.MULTILINE)
    assert re.search(r"^int8 +131\.072 ", out, flags=re.MULTILINE)


def test_arch_show_json_is_the_spec() -> None:
    chip = load_arch("tpu-v4")

    gpu = load_arch("h200-sxm", GpuSpec)
    document = Ran("arch", "show", "h200-sxm", "--json").json()
    assert document["arch"] == gpu.model_dump(mode="json")
    assert document["derived"]["sustained_tflop_per_s"]["bf16"] == gpu.tensor_tflop_per_s("bf16", "sustained")
    assert document["derived"]["dram_achievable_gb_per_s"] == 4500.0
    assert document["units"]["l2_bytes_per_cycle"] == "bytes/cycle"

    document = Ran("arch", "show", "tpu-v4", "--json").json()

    assert document["arch"] == chip.model_dump(mode="json")
    assert document["derived"]["peak_tflop_per_s"] == {
        "bf16": chip.peak_tflop_per_s(),
        "int8": chip.peak_tflop_per_s("int8"),
        "fp16": chip.peak_tflop_per_s("fp16"),
    }
    assert document["units"]["dram_pj_per_byte"] == "pJ/byte"


def test_arch_check_of_all_presets_passes_and_lists_each_finding() -> None:
    document = Ran("arch", "check", *list_archs(), "--json").json()

    assert document["ok"] is True
    for entry in document["archs"]:
        expected = [
            finding._asdict() | {"is_note": finding.is_note} for finding in check_arch(load_arch(entry["arch"]))
        ]
        assert entry["findings"] == expected


def test_arch_check_fails_on_a_missed_figure(tmp_path: Path) -> None:
    path = chip_file(tmp_path, more="published: {dram_gb_per_s: 120.0, source: a sheet}\n")

    text, document = Ran("arch", "check", "tpu-v4", path, columns=200), Ran("arch", "check", path, "--json")

    assert (text.code, text.err) == (1, "")
    assert re.search(r"FAILED +dram_gb_per_s +100 GB/s, published 120 \(-16.67%", text.out)
    assert re.search(r" note +num_cores +1 has no kind and source", text.out)
    assert "tpu-v4" in text.out
    assert document.code == 1
    assert json.loads(document.out)["ok"] is False


TIMINGS = data_root() / "measured" / "h200-sxm" / "w4a16" / "fp16.parquet"


def run(*words: str | Path, code: int = 0) -> str:
    ran = Ran("configs", *words, columns=240)
    assert ran.code == code, ran.err
    return ran.err if code else ran.out


@pytest.fixture(scope="module")
def timings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of three GEMMs of ours: building all takes seconds."""
    table = pd.read_parquet(TIMINGS)
    few = table[(table.M == 16) & (table.K == 4096) & (table.N == 4096)]
    path = tmp_path_factory.mktemp("timings") / "fp16.parquet"
    few.to_parquet(path)
    meta = yaml.safe_load(TIMINGS.with_suffix("").with_suffix(".meta.yaml").read_text("utf-8"))
    meta.pop("sha256", None)
    path.with_name("fp16.meta.yaml").write_text(yaml.safe_dump(meta | {"num_rows": len(few)}))
    return path


@pytest.fixture(scope="module")
def built(timings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "configs.json"
    assert "configs.json: " in run("build", timings, "--out", out)
    return out


def test_built_records_are_the_fastest_that_were_timed(timings: Path, built: Path) -> None:
    best = pd.read_parquet(timings).groupby(["mode", "group_size"]).latency_us.min()
    found = ConfigCache.load(built, is_read_only=True).records

    assert len(found) == len(best)
    for record in found:
        measured = best[record.key.mode.name.lower(), record.key.group_size or -1]
        assert record.latency_us >= round(measured, 3)  # a kernel that is gone since may have been faster
        assert (record.driver, record.compiler) == ("580.159.04", "13.0 13.0.88")
        assert record.date == "2026-11-23"


def test_what_no_longer_holds_says_why(built: Path, tmp_path: Path) -> None:
    first, *rest = ConfigCache.load(built).records
    path = tmp_path / "c.json"
    ConfigCache([replace(first, kernel_hash="0" * 16), *rest]).save(path)
    document = json.loads(run("list", path, "--json"))
    (listed,) = document["files"]
    voids = [record["void"] for record in listed["records"]]

    assert "void: its kernel has changed" in run("list", path)
    assert listed["path"] == str(path)
    assert sorted(void is None for void in voids) == [False] + [True] * len(rest)
    bare = {key: value for key, value in listed["records"][0].items() if key != "void"}
    assert ConfigRecord.from_json(bare).key == first.key


def test_files_are_merged(built: Path, tmp_path: Path) -> None:
    first, *rest = ConfigCache.load(built).records
    faster = replace(first, latency_us=0.5)
    other, out = tmp_path / "other.json", tmp_path / "out.json"
    ConfigCache([faster]).save(other)
    said: Any = json.loads(run("merge", built, other, "--out", out, "--json"))

    assert said["num_records"] == len(rest) + 1
    assert said["num_bytes"] == out.stat().st_size
    assert faster in ConfigCache.load(out).records
    assert sum(said["found_by"].values()) == len(rest) + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    layers = {
        "layers.0.up": make_layer("gptq", 128, 64, 64, 0, is_sorted=False),
        "layers.0.down": make_layer("gptq", 256, 128, 64, 1, has_bias=True),
    }
    write_checkpoint(tmp_path / "checkpoint", layers, GPTQ, files=2)
    return tmp_path / "checkpoint"


def test_convert_and_show(folder: Path, tmp_path: Path) -> None:
    ran = Ran("checkpoint", "convert", folder, "--out", tmp_path / "packed", columns=200)
    assert ran.code == 0, ran.err
    assert "2 layers, 1 of them with act-order, 2 other tensors, 1 files" in ran.out
    ran = Ran("checkpoint", "show", tmp_path / "packed")
    rows = [line.split() for line in ran.out.splitlines() if line.startswith("layers.")]

    assert sorted(rows) == [
        ["layers.0.down", "256", "128", "group_zero", "64", "fp16", "-", "yes", "0.0"],
        ["layers.0.up", "128", "64", "group_zero", "64", "fp16", "yes", "-", "0.0"],
    ]
    assert "2 layers, 0.0 MB" in ran.out


def test_errors_are_a_line(folder: Path, tmp_path: Path) -> None:
    for words, message in (
        (("convert", tmp_path / "none", "-o", tmp_path / "p"), "has no files *.safetensors"),
        (("convert", folder, "-o", folder), "out must be another folder"),
        (("convert", folder, "-o", tmp_path / "p", "--activation", "fp8"), "activation must be one of fp16, bf16"),
        (("convert", folder, "-o", tmp_path / "p", "--gptq-version", "3"), "version must be 1 or 2"),
        (("show", folder), "has no packed layers"),
    ):
        ran = Ran("checkpoint", *words)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), words
        assert message in ran.err
