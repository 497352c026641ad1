"""The command `arch`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec, check_arch, list_archs
from gemm_eval.cli.render_arch import unit_of
from tests.cli.commands import Ran, chip_file

pytestmark = pytest.mark.usefixtures("compiled_kernels")


# arch


def test_arch_list_json() -> None:
    documents = Ran("arch", "list", "--json").json()["archs"]

    assert [document["name"] for document in documents] == list(list_archs())
    chip = load_arch("sg2260e")
    (shown,) = (document for document in documents if document["name"] == "sg2260e")
    assert shown == {
        "name": "sg2260e",
        "type": "multicore",
        "title": chip.title,
        "num_cores": 4,
        "default_dtype": "fp16",
        "peak_tflop_per_s": chip.peak_tflop_per_s(),
        "dram_gb_per_s": 273.056,
        "sram_total_bytes": 64 << 20,
        "is_coarse": False,
    }


def test_arch_list_json_of_a_gpu() -> None:
    documents = Ran("arch", "list", "--json").json()["archs"]

    (shown,) = (document for document in documents if document["name"] == "h200-sxm")
    gpu = load_arch("h200-sxm", GpuSpec)
    assert shown == {
        "name": "h200-sxm",
        "type": "gpu",
        "title": gpu.title,
        "sm_arch": "sm_90",
        "num_sms": 132,
        "default_dtype": "fp16",
        "peak_tflop_per_s": gpu.peak_tflop_per_s(),
        "dram_gb_per_s": 4800.0,
        "l2_bytes": 60 << 20,
    }


def test_arch_list_has_a_table_for_each_kind() -> None:
    out = Ran("arch", "list", columns=120).out

    multicore, gpu = out.index("\nmulticore "), out.index("\ngpu ")
    assert multicore < out.index("\nwormhole-n150 ") < gpu < out.index("\na100-sxm-40gb ")
    assert re.search(r"^h200-sxm +132 +989\.43 fp16 +4,800 +60 +NVIDIA H200 SXM", out, flags=re.MULTILINE)


def test_arch_show_groups_the_fields_of_a_gpu() -> None:
    gpu = load_arch("h200-sxm", GpuSpec)

    out = Ran("arch", "show", "h200-sxm", columns=200).out

    titles = ["chip and clocks", "tensor cores of an SM", "instruction issue and ALUs", "L2 and DRAM", "fixed costs"]
    places = [re.search(rf"^{title}", out, flags=re.MULTILINE) for title in titles]
    starts = [place.start() for place in places if place]
    assert len(starts) == len(titles)
    assert starts == sorted(starts)
    for name, entry in gpu.provenance.items():
        (line,) = re.findall(rf"^{re.escape(name)} .*$", out, flags=re.MULTILINE)
        assert f"{entry.kind}: {entry.source}" in line
    assert re.search(r"^fp16 +989\.4298 +989\.4 +919\.1 +773\.2", out, flags=re.MULTILINE)


def test_arch_show_json_of_a_gpu() -> None:
    gpu = load_arch("h200-sxm", GpuSpec)

    document = Ran("arch", "show", "h200-sxm", "--json").json()

    assert document["arch"] == gpu.model_dump(mode="json")
    assert document["derived"]["sustained_tflop_per_s"]["bf16"] == gpu.tensor_tflop_per_s("bf16", "sustained")
    assert document["derived"]["dram_achievable_gb_per_s"] == 4500.0
    assert document["units"]["l2_bytes_per_cycle"] == "bytes/cycle"


def test_arch_list_marks_what_is_coarse_and_keeps_names_whole() -> None:
    out = Ran("arch", "list").out

    for name in list_archs():
        assert re.search(rf"^{re.escape(name)} ", out, flags=re.MULTILINE)
    assert re.findall(r"^(\S+) \*", out, flags=re.MULTILINE) == [
        name for name in list_archs() if getattr(load_arch(name), "is_coarse", False)
    ]
    assert re.search(r"^sg2260e +4 +65\.54 fp16 +273\.056 +64 ", out, flags=re.MULTILINE)


def test_arch_show_gives_unit_kind_and_source_of_every_number() -> None:
    chip = load_arch("demo-8core")

    out = Ran("arch", "show", "demo-8core", columns=200).out

    for name, entry in chip.provenance.items():
        (line,) = re.findall(rf"^{re.escape(name)} .*$", out, flags=re.MULTILINE)
        assert f"{entry.kind}: {entry.source}" in line
        assert f" {unit_of(name.split('.')[0])} " in line
    assert re.search(r"^vector_is_concurrent +true +default", out, flags=re.MULTILINE)
    assert re.search(r"^dram_sharing +fair +choice", out, flags=re.MULTILINE)
    assert re.search(r"^int8 +131\.072 ", out, flags=re.MULTILINE)


def test_arch_show_json_is_the_spec() -> None:
    chip = load_arch("tpu-v4")

    document = Ran("arch", "show", "tpu-v4", "--json").json()

    assert document["arch"] == chip.model_dump(mode="json")
    assert document["derived"]["peak_tflop_per_s"] == {
        "bf16": chip.peak_tflop_per_s(),
        "int8": chip.peak_tflop_per_s("int8"),
        "fp16": chip.peak_tflop_per_s("fp16"),
    }
    assert document["units"]["dram_pj_per_byte"] == "pJ/byte"


def test_every_number_of_a_spec_has_a_unit() -> None:
    for name in list_archs():
        for key in load_arch(name).provenance:
            assert any(map(unit_of, key.split("."))), key
    assert unit_of("title") == ""


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


def test_arch_check_goes_on_after_an_invalid_file(tmp_path: Path) -> None:
    ran = Ran("arch", "check", chip_file(tmp_path, sram_bytes=-1), "tpu-v4", columns=300)

    assert ran.code == 1
    assert "sram_bytes must be >= 1, got -1" in ran.out
    assert "275 (+0.09%)" in ran.out
