"""The architectures that come with the library: every number has a source, and published figures are reproduced."""

from __future__ import annotations

import re

import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import (
    ArchSpec,
    GpuSpec,
    MulticoreSpec,
    check_arch,
    data_root,
    list_archs,
    load_arch,
)
from tests.cases import case

MIN_SOURCE_WORDS = 3
GPUS = {path.stem for path in (data_root() / "gpu").glob("[!_]*.yaml")}
COARSE = {"arc-pro-b60"}  # GPUs of other makers, whose caches stand for managed SRAM, and which say so
TEACHING_CHIP = "demo-8core"
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


def test_real_chip_states_published_figures() -> None:
    for name in (name for name in PRESETS if name != TEACHING_CHIP):
        with case(name):
            published = load_arch(name).published

            assert published is not None
            assert published.peak_tflop_per_s or published.dram_gb_per_s or published.sram_bytes


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
