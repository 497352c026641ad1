"""Numbers with units in specs, dotted changes, and parts of a table over a base."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_eval import ArchValidationError, load_arch
from gemm_eval.arch import check_arch, list_archs
from gemm_eval.units import UNITS, in_unit_of, unit_of


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("sram_bytes", "1.5 MiB", 1572864), ("l2_bytes", "50MB", 50_000_000), ("dram_gb_per_s", "2 TB/s", 2000.0),
        ("gb_per_s", "400 Gb/s", 50.0), ("max_clock_ghz", "1900 MHz", 1.9), ("launch_us", "800 ns", 0.8),
        ("dram_latency_ns", "0.6 us", 600.0), ("power_limit_w", "1.2 kW", 1200.0), ("mac_pj", "900 fJ", 0.9),
        ("dram_pj_per_byte", "4 pJ/b", 32.0), ("overlap_frac", "85%", 0.85), ("sram_bytes", 1e6, 1_000_000),
        ("num_cores", "8", "8"), ("title", "2 TB/s", "2 TB/s"), ("sram_bytes", "much", "much"),
    ],
)  # fmt: skip
def test_a_number_is_converted_to_the_unit_of_its_field(field: str, text: object, value: object) -> None:
    converted = in_unit_of(field, text)
    assert converted == value
    assert type(converted) is type(value)


def test_every_unit_of_a_kind_has_a_size() -> None:
    for unit, words in UNITS.items():
        assert unit == "frac" or 1.0 in words.values(), unit
        assert unit_of(f"some_{unit}") == unit


def test_specs_take_units_and_say_which_they_know(tmp_path: Path) -> None:
    text = "base: demo-8core\nname: mine\nsram_bytes: 1.5 MiB\n"
    text += "dram_gb_per_s: {value: 2 TB/s, kind: spec, source: 1 TB/s}\n"
    path = tmp_path / "mine.yaml"
    path.write_text(text + "mac_pj: {fp16: 900 fJ}\n")
    arch = load_arch(path)
    assert (arch.sram_bytes, arch.dram_gb_per_s) == (1572864, 2000.0)  # type: ignore[union-attr]
    assert arch.mac_pj["fp16"] == 0.9  # type: ignore[union-attr, index]
    assert arch.provenance["dram_gb_per_s"].source == "1 TB/s"
    path.write_text(text.replace("MiB", "MHz"))
    with pytest.raises(ArchValidationError, match=r"sram_bytes takes a number, or one with a unit: B, kB.*'1.5 MHz'"):
        load_arch(path)


def test_a_dotted_name_changes_one_entry() -> None:
    h200 = load_arch("h200-sxm")
    faster = h200.with_(**{"interconnect.gb_per_s": "1.8 TB/s", "interconnect.network.gb_per_s": "800 Gb/s"})
    assert faster.interconnect.gb_per_s == 1800.0  # type: ignore[union-attr]
    assert faster.interconnect.network.gb_per_s == 100.0  # type: ignore[union-attr]
    assert faster.interconnect.num_gpus == h200.interconnect.num_gpus  # type: ignore[union-attr]
    demo = load_arch("demo-8core").with_(**{"cube_steps_per_cycle.fp16": 2.0})
    assert demo.cube_steps_per_cycle["fp16"] == 2.0  # type: ignore[union-attr, index]
    for name in ("num_sms.x", "interconnect.speed", "nothing.x"):
        with pytest.raises(ArchValidationError):
            h200.with_(**{name: 3})


def test_a_file_may_give_a_part_of_the_interconnect_of_its_base(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("base: h200-sxm\nname: other\ninterconnect: {gb_per_s: 900 GB/s}\n")
    other, base = load_arch(path).interconnect, load_arch("h200-sxm").interconnect  # type: ignore[union-attr]
    assert other is not None
    assert base is not None
    assert other == base.model_copy(update={"gb_per_s": 900.0})


def test_a_spec_is_a_table_in_a_notebook() -> None:
    page = load_arch("demo-8core")._repr_html_()
    assert "<caption" in page
    assert ">num_cores<" in page


def test_a_number_in_a_wrong_unit_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "fast.yaml"
    path.write_text("base: demo-8core\nname: fast\nfrequency_ghz: 1200\n")
    with pytest.warns(UserWarning, match=r"frequency_ghz is 1,200, and 0.01 to 20 was expected: check its unit"):
        arch = load_arch(path)
    assert any("frequency_ghz is 1,200" in finding.message for finding in check_arch(arch))
    path.write_text("base: demo-8core\nname: thin\ndram_gb_per_s: 0.5\n")
    with pytest.warns(UserWarning, match=r"peak_flop_per_dram_byte is 131,072, and 0.1 to 30,000 was expected"):
        load_arch(path)


@pytest.mark.parametrize("name", list_archs())
def test_numbers_of_presets_are_plausible(name: str) -> None:
    assert load_arch(name).implausible_numbers() == []
