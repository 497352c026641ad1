"""`check_arch`: published figures within 1%, notes on numbers that nobody vouches for."""

from __future__ import annotations

import pytest

from gemm_eval.arch import ArchSpec, MulticoreSpec, Published, check_arch, load_arch
from gemm_eval.dtypes import DType


def chip(published: dict[str, object] | None = None, name: str = "demo-8core", **changes: object) -> ArchSpec:
    """The teaching chip (65.536 TFLOP/s fp16, 256 GB/s, 8 MiB) with claims of a maker, provenance and all."""
    good = load_arch(name)
    fields = {field: getattr(good, field) for field in good.model_fields_set}
    claim = None if published is None else Published.model_validate({**published, "source": "a sheet"})
    return type(good)(**{**fields, "published": claim, **changes})


def test_one_finding_for_each_published_figure_in_order() -> None:
    arch = chip({"peak_tflop_per_s": {"fp16": 65.5, "int8": 131.0}, "dram_gb_per_s": 256.0, "sram_bytes": 8 << 20})

    findings = check_arch(arch)

    assert [finding.field for finding in findings] == [
        "peak_tflop_per_s.fp16", "peak_tflop_per_s.int8", "dram_gb_per_s", "sram_bytes",
    ]  # fmt: skip
    assert all(finding.ok and not finding.is_note for finding in findings)
    assert findings[0].message == "65.536 TFLOP/s, published 65.5 (+0.05%)"


@pytest.mark.parametrize(
    ("name", "published", "field"),
    [
        ("demo-8core", {"peak_tflop_per_s": {"fp16": 66.3}}, "peak_tflop_per_s.fp16"),
        ("demo-8core", {"peak_tflop_per_s": {"fp16": 64.8}}, "peak_tflop_per_s.fp16"),
        ("demo-8core", {"peak_tflop_per_s": {"tf32": 65.5}}, "peak_tflop_per_s.tf32"),
        ("demo-8core", {"dram_gb_per_s": 260.0}, "dram_gb_per_s"),
        ("demo-8core", {"dram_gb_per_s": 252.0}, "dram_gb_per_s"),
        ("demo-8core", {"sram_bytes": 1 << 20}, "sram_bytes"),  # that of one core: the published figure is the chip's
        ("demo-8core", {"num_sms": 8}, "num_sms"),  # of a chip that has none
        ("h200-sxm", {"peak_tflop_per_s": {"fp32": 67.0}}, "peak_tflop_per_s.fp32"),
        ("h200-sxm", {"dram_gb_per_s": 3350.0}, "dram_gb_per_s"),
        ("h200-sxm", {"num_sms": 133}, "num_sms"),
        ("h200-sxm", {"sram_bytes": 228 << 10}, "sram_bytes"),
    ],
)
def test_a_missed_figure_fails(name: str, published: dict[str, object], field: str) -> None:
    (finding,) = check_arch(chip(published, name))

    assert (finding.field, finding.ok) == (field, False)
    if "fp32" in field:
        assert "tensor_flop_per_cycle has no fp32" in finding.message


@pytest.mark.parametrize(("dram", "ok"), [(101.0, True), (99.0, True), (101.1, False), (98.9, False)])
def test_one_percent_is_still_close(dram: float, ok: bool) -> None:
    (finding,) = check_arch(chip({"dram_gb_per_s": 100.0}, dram_gb_per_s=dram))

    assert finding.ok is ok


def test_nothing_published_is_a_note() -> None:
    (finding,) = check_arch(chip())

    assert finding.ok
    assert finding.is_note
    assert finding.field == "published"


@pytest.mark.parametrize("name", ["num_cores", "frequency_ghz", "cube_steps_per_cycle.fp8", "mac_pj.int8"])
def test_a_number_without_provenance_is_a_note(name: str) -> None:
    kept = {key: entry for key, entry in load_arch("demo-8core").provenance.items() if key != name}

    notes = [finding for finding in check_arch(chip({"dram_gb_per_s": 256.0}, provenance=kept)) if finding.is_note]

    assert [note.field for note in notes] == [name]
    assert notes[0].ok


def test_defaults_and_modes_need_no_provenance() -> None:
    arch = MulticoreSpec(
        name="bare", num_cores=2, frequency_ghz=1.0, cube_m=16, cube_k=16, cube_n=16,
        cube_steps_per_cycle={DType.FP16: 1.0}, sram_bytes=1 << 20, dram_gb_per_s=100.0, dram_sharing="fair",
        reduction="none", vector_is_concurrent=False, tdp_w=None,
    )  # fmt: skip

    noted = {finding.field for finding in check_arch(arch) if finding.field != "published"}

    assert noted == {
        "num_cores", "frequency_ghz", "cube_m", "cube_k", "cube_n", "cube_steps_per_cycle.fp16", "sram_bytes",
        "dram_gb_per_s",
    }  # fmt: skip


def test_a_changed_table_is_vouched_for_as_a_whole() -> None:
    arch = load_arch("demo-8core", MulticoreSpec).with_(cube_steps_per_cycle={"fp16": 2.0}, cube_k_by_dtype={})

    assert [finding.field for finding in check_arch(arch)] == ["published"]
