"""The architectures that come with the library: every number has a source, and published figures are reproduced."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from gemm_eval.arch import (
    ArchSpec,
    GpuSpec,
    MulticoreSpec,
    Provenance,
    ProvenanceKind,
    Published,
    data_root,
    list_archs,
    load_arch,
)
from tests.cases import case

PUBLISHED_REL_TOL = 0.01
MIN_SOURCE_WORDS = 3
MIN_REAL_CHIPS = 8
GPUS = {path.stem for path in (data_root() / "gpu").glob("[!_]*.yaml")}
COARSE = {"arc-pro-b60"}  # GPUs of other makers, whose caches stand for managed SRAM, and which say so
TEACHING_CHIP = "demo-8core"
UNTIMED = {"blackhole-p150", "tpu-v5e", "tpu-v6e", "tpu-v7", "trainium2"}
"""Chips of which no timings were used."""
CARRIED = {"blackhole-p150": "wormhole-n150"}
"""Chips that take fitted and measured numbers of another."""
NOT_NUMBERS_OF_THE_CHIP = {"published", "sources", "provenance"}

PRESETS = list_archs()


def numbers_of(spec: ArchSpec) -> set[str]:
    """Provenance keys of every number that the file set: ``field``, or ``field.dtype`` inside a table.

    Numbers inside tables of tables (``rules``, ``by_dtype``) have no place for a provenance until they are fitted.
    """
    names = set()
    for field in spec.model_fields_set - NOT_NUMBERS_OF_THE_CHIP:
        value = getattr(spec, field)
        if isinstance(value, Mapping):
            names |= {path for path, item in _paths(field, value) if is_number(item)}
        elif is_number(value):
            names.add(field)
    return names


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _paths(path: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, Mapping):
        return [(path, value)]
    return [found for key, item in value.items() for found in _paths(f"{path}.{key}", item)]


def provenance_problems(spec: ArchSpec) -> list[str]:
    problems = [f"{name}: no kind and source" for name in sorted(numbers_of(spec) - set(spec.provenance))]
    for name, entry in sorted(spec.provenance.items()):
        if entry.kind not in ProvenanceKind:
            problems.append(f"{name}: unknown kind {entry.kind}")
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


def published_problems(spec: ArchSpec) -> list[str]:
    published = spec.published
    if published is None:
        return []
    rates = spec.tensor_flop_per_cycle if isinstance(spec, GpuSpec) else spec.cube_steps_per_cycle
    num_sms, sram_bytes = (
        (spec.num_sms, spec.num_sms * spec.smem_per_sm_bytes)
        if isinstance(spec, GpuSpec)
        else (0, spec.num_cores * spec.sram_bytes)
    )
    pairs = [
        (f"peak {dtype}", spec.peak_tflop_per_s(dtype) if dtype in rates else 0.0, peak)
        for dtype, peak in published.peak_tflop_per_s.items()
    ]
    if published.dram_gb_per_s is not None:
        pairs.append(("dram_gb_per_s", spec.dram_gb_per_s, published.dram_gb_per_s))
    if published.sram_bytes is not None:
        pairs.append(("sram_bytes of all cores", float(sram_bytes), float(published.sram_bytes)))
    if published.num_sms is not None:
        pairs.append(("num_sms", float(num_sms), float(published.num_sms)))
    return [
        f"{name}: {ours:.6g}, published {theirs:.6g}"
        for name, ours, theirs in pairs
        if ours != pytest.approx(theirs, rel=PUBLISHED_REL_TOL)
    ]


def test_preset_loads_under_its_own_name_with_words() -> None:
    for name in PRESETS:
        with case(name):
            spec = load_arch(name)

            assert spec.name == name
            assert spec.title
            assert spec.notes


def test_every_number_has_provenance() -> None:
    for name in PRESETS:
        with case(name):
            assert provenance_problems(load_arch(name)) == []


def test_every_source_is_used() -> None:
    for name in PRESETS:
        with case(name):
            assert unused_sources(load_arch(name)) == []


def test_published_figures_are_reproduced() -> None:
    for name in PRESETS:
        with case(name):
            assert published_problems(load_arch(name)) == []


def test_real_chip_states_published_figures() -> None:
    for name in (name for name in PRESETS if name != TEACHING_CHIP):
        with case(name):
            published = load_arch(name).published

            assert published is not None
            assert published.peak_tflop_per_s or published.dram_gb_per_s or published.sram_bytes


def test_there_are_enough_real_chips() -> None:
    assert TEACHING_CHIP in PRESETS
    assert len(set(PRESETS) - {TEACHING_CHIP}) >= MIN_REAL_CHIPS


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


def test_blackhole_out_of_the_box_writes_the_share_of_its_bandwidth_that_wormhole_does() -> None:
    shares = [
        chip.under_library().dram_write_gb_per_s / chip.dram_gb_per_s  # type: ignore[operator]
        for chip in (load_arch(name, MulticoreSpec) for name in ("wormhole-n150", "blackhole-p150"))
    ]

    assert shares[1] == pytest.approx(shares[0], rel=0.05)


@pytest.mark.parametrize("name", sorted(GPUS))
def test_gpu_states_peaks_bandwidth_and_sms(name: str) -> None:
    published = load_arch(name).published

    assert published is not None
    assert published.peak_tflop_per_s["fp16"] > 0  # type: ignore[index]
    assert published.dram_gb_per_s
    assert published.num_sms


def test_what_is_measured_on_a_gpu_names_its_reference() -> None:
    for name in GPUS:
        spec = load_arch(name, GpuSpec)
        for key, entry in spec.provenance.items():
            if entry.kind == "measured":
                assert any(mentions(entry.source, source) for source in spec.sources), (name, key)


# The checks themselves, on a spec that is wrong in one place.


def spoiled(**changes: object) -> MulticoreSpec:
    """A sound in-memory copy of the teaching chip with fields replaced, provenance and all."""
    good = load_arch(TEACHING_CHIP, MulticoreSpec)
    fields = {field: getattr(good, field) for field in good.model_fields_set}
    return MulticoreSpec(**{**fields, **changes})


@pytest.mark.parametrize("missing", ["sram_bytes", "input_buffers", "cube_steps_per_cycle.fp16", "mac_pj.int8"])
def test_check_finds_a_number_without_provenance(missing: str) -> None:
    kept = {key: entry for key, entry in load_arch(TEACHING_CHIP).provenance.items() if key != missing}

    assert provenance_problems(spoiled(provenance=kept)) == [f"{missing}: no kind and source"]


@pytest.mark.parametrize("source", ["guess", "a guess", "teachings"])
def test_check_finds_a_source_that_says_nothing(source: str) -> None:
    entries = dict(load_arch(TEACHING_CHIP).provenance)
    entries["launch_us"] = Provenance(kind=ProvenanceKind.ASSUMED, source=source)

    (problem,) = provenance_problems(spoiled(provenance=entries))
    assert problem.startswith("launch_us: source")


def test_check_finds_an_unused_source() -> None:
    sources = {"teaching": "a round number", "teach": "never cited", "paper": "never cited either"}

    assert unused_sources(spoiled(sources=sources)) == ["teach", "paper"]


@pytest.mark.parametrize(
    ("published", "found"),
    [
        ({"peak_tflop_per_s": {"fp16": 65.5}}, []),
        ({"peak_tflop_per_s": {"fp16": 67.0}}, ["peak fp16: 65.536, published 67"]),
        ({"peak_tflop_per_s": {"tf32": 65.5}}, ["peak tf32: 0, published 65.5"]),
        ({"dram_gb_per_s": 252.0}, ["dram_gb_per_s: 256, published 252"]),
        ({"sram_bytes": 8_000_000}, ["sram_bytes of all cores: 8.38861e+06, published 8e+06"]),
    ],
)
def test_check_finds_a_published_figure_that_is_missed(published: dict[str, object], found: list[str]) -> None:
    claim = Published.model_validate({**published, "source": "a sheet that does not exist"})

    assert published_problems(spoiled(published=claim)) == found
