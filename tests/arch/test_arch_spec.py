"""Specs of both kinds are frozen values; `MulticoreSpec`: strict, consistent; published figures, notes on numbers."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gemm_eval import ArchValidationError
from gemm_eval.arch import (
    ArchSpec,
    GpuSpec,
    MulticoreSpec,
    Provenance,
    ProvenanceKind,
    Published,
    check_arch,
    load_arch,
)
from gemm_eval.dtypes import DType
from tests.cases import case

DEMO = load_arch("demo-8core", MulticoreSpec)
BOTH = pytest.mark.parametrize("spec", [DEMO, load_arch("h200-sxm", GpuSpec)], ids=lambda spec: spec.name)
MINIMAL: dict[str, Any] = {
    "name": "mine", "num_cores": 4, "frequency_ghz": 1.5, "cube_m": 16, "cube_k": 32, "cube_n": 8,
    "cube_steps_per_cycle": {"fp16": 1.0}, "sram_bytes": 1 << 20, "dram_gb_per_s": 100.0, "reduction": "none",
}  # fmt: skip
# field -> (smallest, largest) allowed value, and values just outside
INT_BOUNDS = {
    "num_cores": (1, 1 << 20), "cube_m": (1, 1 << 16), "cube_k": (1, 1 << 16), "cube_n": (1, 1 << 16),
    "fill_drain_cycles": (0, 1 << 30), "sram_bytes": (1, 1 << 50), "input_buffers": (1, 2), "output_buffers": (1, 2),
    "lane_num": (1, 1 << 16), "align_bytes": (1, 1 << 16),
}  # fmt: skip
POSITIVE = ["frequency_ghz", "dram_gb_per_s", "dram_core_limit_gb_per_s", "noc_gb_per_s", "vector_ops_per_cycle",
            "dequant_ops_per_elem", "exp_ops_per_elem", "area_mm2", "tdp_w"]  # fmt: skip
NON_NEGATIVE = ["launch_us", "static_w", "sram_pj_per_byte", "dram_pj_per_byte", "noc_pj_per_byte"]
FRACS = ["sram_usable_frac", "dram_efficiency_frac"]
FLOATS = [*POSITIVE, *NON_NEGATIVE, *FRACS, "overlap_frac"]
NO_FLOAT = [math.nan, math.inf, -math.inf, True, "1.0", [1.0], {}, 1j, 10**400]


def minimal(**changes: Any) -> MulticoreSpec:
    return MulticoreSpec(**(MINIMAL | changes))


@BOTH
def test_fields_cannot_be_assigned_or_deleted(spec: MulticoreSpec | GpuSpec) -> None:
    for field in type(spec).model_fields:
        with case(field):
            with pytest.raises(ValidationError, match="frozen"):
                setattr(spec, field, getattr(spec, field))
            with pytest.raises(ValidationError, match="frozen"):
                delattr(spec, field)


@BOTH
def test_value_semantics(spec: MulticoreSpec | GpuSpec) -> None:
    kind, again = type(spec), pickle.loads(pickle.dumps(spec))
    same = (again, load_arch(spec.name), spec.with_(), copy.deepcopy(spec), kind.model_validate(spec.model_dump()))
    for other in (*same, kind.model_validate_json(spec.model_dump_json())):
        assert other == spec
        assert hash(other) == hash(spec)
    assert spec.with_(dram_gb_per_s=9.0) != spec
    table = again.cube_steps_per_cycle if isinstance(again, MulticoreSpec) else again.tensor_flop_per_cycle
    with pytest.raises(TypeError, match="frozen"):
        table.clear()


@pytest.mark.parametrize("field", [field for field in MINIMAL if field not in ("name", "reduction")])
def test_what_has_no_default_must_be_given(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        MulticoreSpec(**{key: value for key, value in MINIMAL.items() if key != field})


@pytest.mark.parametrize("field", INT_BOUNDS)
def test_integer_field(field: str) -> None:
    low, high = INT_BOUNDS[field]
    for good in (low, high, np.int64(high), np.uint64(low)):
        value = getattr(DEMO.with_(**{field: good}), field)
        assert value == good
        assert type(value) is int
    no_integers = [1.5, math.nan, True, "1", None, [1], np.True_]
    no_integers += [] if field.endswith("_bytes") else [float(low), np.float64(1)]  # 1e6 bytes are 1000000
    for bad in (low - 1, high + 1, -1, 10**400, *no_integers):
        with pytest.raises(ArchValidationError, match=rf"^{field} must be .*got .*: {field}\)$"):
            DEMO.with_(**{field: bad})


@pytest.mark.parametrize("field", FLOATS)
def test_float_field(field: str) -> None:
    for good in (1.0, 1, 0.25, np.float64(0.5), np.float32(0.5), np.int64(1)):
        value = getattr(DEMO.with_(**{field: good}), field)
        assert value == good
        assert type(value) is float
    bad_values: list[Any] = [*NO_FLOAT, -1.0, -1e-300, np.float64("nan"), np.True_]
    bad_values += [1.0000001] if field in FRACS or field == "overlap_frac" else [1.0000001e15]
    bad_values += [0.0, 0] if field in POSITIVE or field in FRACS else []
    for bad in bad_values:
        with pytest.raises(ArchValidationError, match=rf"^{field} must be .*got .*: {field}\)$"):
            DEMO.with_(**{field: bad})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"default_dtype": "tf32"}, "default_dtype tf32 must have an entry in cube_steps_per_cycle"),
        ({"default_dtype": "fp12"}, "^default_dtype must be"),
        ({"cube_steps_per_cycle": {}}, "^cube_steps_per_cycle must"),
        ({"cube_steps_per_cycle": {"fp16": 1.0, "int32": 1.0}}, "int32 is an accumulator type"),
        ({"cube_steps_per_cycle": {"fp12": 1.0}}, r"^cube_steps_per_cycle.fp12 must be 'fp32'"),
        ({"cube_steps_per_cycle": {"fp16": 0.0}}, r"^cube_steps_per_cycle.fp16 must be >"),
        ({"cube_steps_per_cycle": {"fp16": math.nan}}, r"^cube_steps_per_cycle.fp16 must be a finite number"),
        ({"cube_steps_per_cycle": [("fp16", 1.0)]}, "^cube_steps_per_cycle must be"),
        ({"cube_k_by_dtype": {"int8": 64}}, "cube_k_by_dtype: int8 must have an entry in cube_steps_per_cycle"),
        ({"cube_k_by_dtype": {"fp16": 0}}, r"^cube_k_by_dtype.fp16 must be >= 1"),
        ({"mac_pj": {"fp16": -1.0}}, r"^mac_pj.fp16 must be >= 0"),
        ({"timing": "pipeline", "input_buffers": 1}, "timing pipeline needs input_buffers 2"),
        ({"timing": "magic"}, "^timing must be 'overlap' or 'pipeline', got 'magic'"),
        ({"load_sharing": "multicast"}, "load_sharing multicast needs noc_gb_per_s"),
        ({"load_sharing": "broadcast"}, "^load_sharing must be"),
        ({"dram_sharing": None}, "^dram_sharing must be"),
        ({"reduction": "noc", "vector_ops_per_cycle": 1.0}, "reduction noc needs noc_gb_per_s"),
        ({"reduction": "dram"}, "reduction dram needs vector_ops_per_cycle"),
        ({"reduction": "noc", "noc_gb_per_s": 1.0}, "reduction noc needs vector_ops_per_cycle"),
        ({"dequant": "vector", "vector_ops_per_cycle": 1.0}, "dequant vector needs .*dequant_ops_per_elem"),
        ({"dequant": "vector", "dequant_ops_per_elem": 1.0}, "dequant vector needs vector_ops_per_cycle"),
        ({"vector_is_concurrent": 1}, "^vector_is_concurrent must be"),
        ({"name": "a b"}, "^name must"),
        ({"name": "../x"}, "^name must"),
        ({"name": "a\n"}, "^name must"),
        ({"name": ""}, "^name must"),
        ({"name": "x" * 65}, "^name must"),
        ({"notes": "x" * 4001}, "^notes must"),
        ({"type": "gpu"}, "^type must be 'multicore'"),
        ({"num_core": 3}, "^num_core is not a field, did you mean num_cores?"),
        ({"sram": 3}, "^sram is not a field"),
        ({"provenance": {"num_cores": {"kind": "guess", "source": "x"}}}, r"^provenance.num_cores.kind must be"),
        ({"provenance": {"num_cores": {"kind": "spec", "source": ""}}}, r"^provenance.num_cores.source must"),
        ({"published": {"source": "x", "sram_bytes": 0}}, r"^published.sram_bytes must be >= 1"),
    ],
)  # fmt: skip
def test_rule(changes: dict[str, Any], message: str) -> None:
    """Direct construction and `with_` refuse the same; `with_` names origin and field, in the library's own words."""
    with pytest.raises(ValidationError):
        minimal(**changes)
    with pytest.raises(ArchValidationError, match=message) as caught:
        minimal().with_(**changes)
    assert "mine.with_" in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ArchValidationError, match=r"num_cores must be .*; .*cube_m must be "):
        DEMO.with_(num_cores=0, cube_m=0)


def test_with_updates_provenance_and_keeps_the_rest() -> None:
    changed = DEMO.with_(num_cores=np.int64(16), cube_k_by_dtype={"int8": np.int64(64)})

    assert changed.num_cores == 16
    assert changed.cube_k_by_dtype == {"int8": 64}
    assert changed.provenance["num_cores"] == Provenance(kind=ProvenanceKind.ASSUMED, source="changed by with_")
    assert changed.provenance["cube_k_by_dtype"].kind == "assumed"
    assert not [key for key in changed.provenance if key.startswith("cube_k_by_dtype.")]
    assert changed.provenance["sram_bytes"] == DEMO.provenance["sram_bytes"]
    assert DEMO.num_cores == 8


def test_with_drops_published_figures_of_the_other_chip() -> None:
    chip = load_arch("sg2260e")

    assert chip.published is not None
    assert chip.with_().published == chip.published
    assert chip.with_(num_cores=8).published is None
    assert chip.with_(num_cores=8, published=chip.published).published == chip.published


def test_peak_arithmetic() -> None:
    spec = minimal(
        cube_steps_per_cycle={"fp16": 0.5, "int8": 2.0}, cube_k_by_dtype={"int8": 64}, num_cores=3, frequency_ghz=2.0
    )

    # 2 FLOP x 16*32*8 MAC x 0.5 steps a cycle x 3 cores x 2 GHz
    assert spec.peak_tflop_per_s() == pytest.approx(2 * 16 * 32 * 8 * 0.5 * 3 * 2.0e9 / 1e12)
    assert (
        spec.peak_tflop_per_s("int8")
        == spec.peak_tflop_per_s(DType.INT8)
        == pytest.approx(2 * 16 * 64 * 8 * 12e9 / 1e12)
    )
    assert spec.cube_k_of(DType.INT8) == 64
    assert spec.cube_k_of(DType.FP16) == 32
    with pytest.raises(KeyError):
        spec.peak_tflop_per_s("bf16")


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


@pytest.mark.parametrize("name", ["num_cores", "frequency_ghz", "cube_steps_per_cycle.fp8", "mac_pj.int8"])
def test_a_number_without_provenance_is_a_note(name: str) -> None:
    kept = {key: entry for key, entry in load_arch("demo-8core").provenance.items() if key != name}

    notes = [finding for finding in check_arch(chip({"dram_gb_per_s": 256.0}, provenance=kept)) if finding.is_note]

    assert [note.field for note in notes] == [name]
    assert notes[0].ok


def test_a_changed_table_is_vouched_for_as_a_whole() -> None:
    arch = load_arch("demo-8core", MulticoreSpec).with_(cube_steps_per_cycle={"fp16": 2.0}, cube_k_by_dtype={})

    assert [finding.field for finding in check_arch(arch)] == ["published"]
