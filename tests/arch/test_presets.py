"""Presets and their sources, and units of numbers in files."""

import re
from pathlib import Path

import pytest

from gemm_eval import ArchValidationError, GEMMEvaluator
from gemm_eval.arch import (
    ArchSpec,
    GpuSpec,
    MulticoreSpec,
    check_arch,
    data_root,
    list_archs,
    load_arch,
)
from gemm_eval.units import UNITS, in_unit_of, unit_of
from tests.cases import case

# ---- presets ---------------------------------------------------------------------------------------------------------


MIN_SOURCE_WORDS = 3
GPUS = {path.stem for path in (data_root() / "gpu").glob("[!_]*.yaml")}
COARSE = {"arc-pro-b60"}  # GPUs of other makers, whose caches stand for managed SRAM, and which say so
UNTIMED = {"blackhole-p150", "tpu-v5e", "tpu-v6e", "tpu-v7", "trainium2"}
"""Chips of which no timings were used."""
UNPUBLISHED = {"mi308x"}
"""GPUs of which no peak is published."""
CARRIED = {"blackhole-p150": "wormhole-n150"}
"""Chips that take fitted and measured numbers of another."""

PRESETS = list_archs()


def provenance_problems(spec: ArchSpec) -> list[str]:
    """Numbers without kind and source, and sources that say nothing."""
    problems = [finding.field for finding in check_arch(spec) if finding.is_note and finding.field != "published"]
    for name, entry in sorted(spec.provenance.items()):
        names_a_source = any(mentions(entry.source, key) for key in spec.sources)
        if not names_a_source and len(entry.source.split()) < MIN_SOURCE_WORDS:
            problems.append(f"{name}: source {entry.source!r} names no key of sources and is too short to say why")
    return problems


def unused_sources(spec: ArchSpec) -> list[str]:
    texts = [spec.notes, getattr(spec, "setting", ""), *(entry.source for entry in spec.provenance.values())]
    if spec.published is not None:
        texts.append(spec.published.source)
    return [key for key in spec.sources if not any(mentions(text, key) for text in texts)]


def mentions(text: str, key: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])", text) is not None


def test_a_preset_has_words_and_sources_and_reproduces_what_is_published() -> None:
    for name in PRESETS:
        with case(name):
            spec = load_arch(name)

            assert spec.name == name
            assert spec.title
            assert spec.notes
            assert provenance_problems(spec) == []
            assert unused_sources(spec) == []
            assert [finding for finding in check_arch(spec) if not finding.ok] == []


def test_a_gpu_among_the_multicore_presets_says_so() -> None:
    kinds = {name: load_arch(name) for name in PRESETS}

    assert {name for name, spec in kinds.items() if isinstance(spec, GpuSpec)} == GPUS
    assert {name for name, spec in kinds.items() if isinstance(spec, MulticoreSpec) and spec.is_coarse} == COARSE


def test_chip_without_timings_has_nothing_fitted_of_its_own() -> None:
    own_kinds = {"spec", "derived", "assumed"}
    for name in sorted(UNTIMED):
        with case(name):
            spec = load_arch(name, MulticoreSpec, calibrated=False)
            carried = load_arch(CARRIED[name], calibrated=False).provenance if name in CARRIED else {}

            assert load_arch(name, MulticoreSpec).calibration == ""
            assert spec.coefficients  # what timings would tell
            assert {
                key: entry for key, entry in spec.provenance.items()
                if entry.kind not in own_kinds and entry != carried.get(key)
            } == {}  # fmt: skip


def test_blackhole_takes_the_fitted_numbers_of_wormhole() -> None:
    wormhole, blackhole = (load_arch(name, MulticoreSpec) for name in ("wormhole-n150", "blackhole-p150"))
    shares = [path for path in wormhole.coefficients if "." not in path and not path.endswith("gb_per_s")]
    links = 64 / 32 * blackhole.frequency_ghz / wormhole.frequency_ghz  # bytes a cycle of the networks
    assert wormhole.dram_core_limit_gb_per_s
    assert blackhole.dram_core_limit_gb_per_s == pytest.approx(links * wormhole.dram_core_limit_gb_per_s, rel=0.01)

    assert wormhole.calibration
    assert {path: getattr(blackhole, path) for path in shares} == {path: getattr(wormhole, path) for path in shares}
    assert {blackhole.provenance[path].kind for path in shares} == {"fitted"}


@pytest.mark.parametrize("name", sorted(GPUS))
def test_gpu_states_peaks_bandwidth_and_sms(name: str) -> None:
    published = load_arch(name).published

    assert published is not None
    assert name in UNPUBLISHED or published.peak_tflop_per_s["fp16"] > 0  # type: ignore[index]
    assert published.dram_gb_per_s
    assert published.num_sms


def test_what_is_measured_on_a_gpu_names_its_reference() -> None:
    for name in GPUS:
        spec = load_arch(name, GpuSpec)
        for key, entry in spec.provenance.items():
            if entry.kind == "measured":
                assert any(mentions(entry.source, source) for source in spec.sources), (name, key)


# The checks themselves, on a spec that is wrong in one place.


@pytest.mark.parametrize("name", ["b300", "gb200", "gb300"])
def test_clocks_of_data_center_blackwell_follow_what_power_allows(name: str) -> None:
    """The law that `blackwell-power` states, from the clocks of a B200 that were measured."""
    spec, measured = load_arch(name, GpuSpec), load_arch("b200", GpuSpec)
    power = (spec.power_limit_w - 200) / (measured.power_limit_w - 200) * measured.num_sms / spec.num_sms

    for clock in ("burst", "sustained"):
        for dtype in ("bf16", "fp16"):
            expected = measured.tensor_clock_ghz(dtype, clock) * power**0.8
            assert spec.tensor_clock_ghz(dtype, clock) == pytest.approx(expected, rel=0.01), (clock, dtype)


def test_gemms_of_blackwell_ultra_run_as_fast_as_power_lets_them() -> None:
    """GB300: 1.14 times as fast as by the clocks of `power-model`; B300: 1,492 TFLOP/s at 1100 W."""
    ultra, sizes = GEMMEvaluator("gb300"), ((8192, 8192, 8192), (16384, 7168, 4096), (16384, 16384, 16384))
    for size, by_power_model_us in zip(sizes, (644.5, 565.1, 5236.4), strict=True):
        latency_us = ultra.evaluate(1, *size, dtype="bf16").latency_us
        assert latency_us == pytest.approx(by_power_model_us / 1.14, rel=0.07)
    assert GEMMEvaluator("b300").evaluate(1, *sizes[-1], dtype="bf16").tflop_per_s == pytest.approx(1492, rel=0.07)


# ---- units -----------------------------------------------------------------------------------------------------------


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
