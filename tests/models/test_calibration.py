"""Calibrations: files, what is refused, whose coefficients hold on which GPU, and intervals around predictions."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import GpuSpec, data_root, list_archs, load_arch
from gemm_eval.errors import ArchValidationError
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.gpu import calibration as calibrations
from gemm_eval.models.gpu.attention import ATTENTION_FAMILIES, ATTENTION_LIBRARIES, attention_coefficients
from gemm_eval.models.gpu.coefficients import COEFFICIENTS, NO_LIMIT, Coefficient
from gemm_eval.models.gpu.collective import COLLECTIVE_COEFFICIENTS, CollectiveCalibration, collective_coefficients
from gemm_eval.models.gpu.families import FAMILIES, default_coefficients
from gemm_eval.models.gpu.memory_bound import (
    MEMORY_BOUND_COEFFICIENTS,
    SWITCH_COEFFICIENTS,
    MemoryBoundCalibration,
    memory_bound_coefficients,
)
from gemm_eval.models.gpu.triton import TRITON_COEFFICIENTS, TritonCalibration, triton_coefficients
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_GROUPED_FAMILIES

# ---- files -----------------------------------------------------------------------------------------------------------


H200, H100, L40S = (load_arch(name, GpuSpec) for name in ("h200-sxm", "h100-sxm", "l40s"))
FAMILY = "sm90_wgmma"
FITTED = default_coefficients(FAMILY) | {"kernel_us": 3.25}
ERRORS = calibrations.ErrorFigures(
    data="cublas/fp16", sha256="0" * 64, num_rows=1846, mape_percent=5.1, median_percent=3.2, p90_percent=11.0,
    bias_percent=-0.4, kendall_tau=0.97,
)  # fmt: skip
SIZES = (1, 64, 4096, 4096)


def make(**changes: Any) -> calibrations.Calibration:
    given: dict[str, Any] = {
        "gpu": "h200-sxm", "library": "cublas", "family": FAMILY, "model_version": "gpu-1", "code_version": "0",
        "date": "2026-01-02", "folds": "5-fold", "coefficients": FITTED, "fitted": ("kernel_us",), "errors": (ERRORS,),
    }  # fmt: skip
    return calibrations.Calibration(**(given | changes))


def write(root: Path, found: calibrations.Calibration, text: str | None = None) -> Path:
    path = root / "calibration" / found.gpu / f"{found.library}-{found.family}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(found.to_yaml() if text is None else text)
    return path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder without calibrations."""
    monkeypatch.setattr(gpu_model.calibration, "data_root", lambda: tmp_path)
    return tmp_path


def test_a_file_holds_what_was_fitted(root: Path) -> None:
    found = make()
    text = found.to_yaml()

    assert calibrations.load_calibration(write(root, found)) == found
    assert "kernel_us: 3.25  # us, fitted: " in text
    assert "matrix_frac: 1  # 1, default: " in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coefficients": FITTED | {"kernel_us": 99.0}}, r"kernel_us must be in 0.2..8.0 us, got 99"),
        ({"coefficients": FITTED | {"wind": 1.0}}, "wrong: wind"),
        ({"coefficients": FITTED | {"kernel_us": float("nan")}}, "finite number"),
        ({"fitted": ("wind",)}, "fitted names no coefficient: wind"),
        ({"coefficients": {"matrix_frac": 1.0}}, "fitted names no coefficient: kernel_us"),
        ({"library": "mkl"}, "library must be one of cublas"),
        ({"family": "sm90"}, "family must be one of sm90_wgmma"),
        ({"errors": ()}, "errors"),
        ({"extra": 1}, "extra"),
    ],
)
def test_impossible_calibrations_are_refused(root: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**change)
    document = make().model_dump(mode="json") | {
        key: list(v) if isinstance(v, tuple) else v for key, v in change.items()
    }
    path = write(root, make(), yaml.safe_dump(document))
    with pytest.raises(ArchValidationError, match=message):
        calibrations.load_calibration(path)


def test_a_file_must_be_where_its_name_says(root: Path) -> None:
    path = write(root, make(gpu="h100-sxm"))
    moved = path.with_name("trtllm-sm90_wgmma.yaml")
    path.rename(moved)

    with pytest.raises(ArchValidationError, match="this is a calibration of h100-sxm/cublas-sm90_wgmma"):
        gpu_model.coefficients_for(H100, "trtllm", FAMILY)


def test_a_file_older_than_a_coefficient_has_its_term_absent(root: Path) -> None:
    older = {name: value for name, value in FITTED.items() if name not in ("fixup_us", "l2_frac")}
    write(root, make(coefficients=older))
    coefficients, origin = gpu_model.coefficients_for(H200, "cublas", FAMILY)

    assert origin.is_calibrated
    assert coefficients == older | {"fixup_us": 0.0, "l2_frac": NO_LIMIT.value}
    assert list(coefficients) == [item.name for item in COEFFICIENTS]


TABLES: dict[str, Sequence[Coefficient]] = {
    **{name: family.coefficients for name, family in FAMILIES.items()},
    **{f"attention {name}": family.coefficients for name, family in ATTENTION_FAMILIES.items()},
    "collective": COLLECTIVE_COEFFICIENTS, "memory-bound": MEMORY_BOUND_COEFFICIENTS, "switches": SWITCH_COEFFICIENTS,
    "triton": TRITON_COEFFICIENTS,
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_coefficients_are_well_formed(table: str) -> None:
    names = [item.name for item in TABLES[table]]
    assert len(set(names)) == len(names)
    for item in TABLES[table]:
        assert 0 <= item.low <= item.default <= item.high, item.name
        assert item.low < item.high, item.name
        assert item.unit, item.name
        assert item.meaning, item.name
        assert item.source, item.name
        assert item.neutral.why, item.name
        assert item.neutral.same_as in {"", *names}, item.name


# calibrations of one set of coefficients


SINGLE: dict[type[calibrations.SingleCalibration], tuple[str, dict[str, object]]] = {
    CollectiveCalibration: ("collective.yaml", {"libraries": ("nccl 2.27",), "model_version": "1", "fitted": ()}),
    MemoryBoundCalibration: ("memory-bound.yaml", {"model_version": "1"}),
    TritonCalibration: ("triton.yaml", {"triton_version": "3.6.0"}),
}
KINDS = pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.__name__)


def defaults_of(kind: type[calibrations.SingleCalibration]) -> dict[str, float]:
    return {item.name: item.default for item in kind.known}


def make_single(kind: type[calibrations.SingleCalibration], **changes: Any) -> calibrations.SingleCalibration:
    given: dict[str, Any] = {
        "gpu": "h200-sxm", "code_version": "0", "date": "2026-01-02", "folds": "by shape", "errors": (ERRORS,),
        "coefficients": defaults_of(kind),
    }  # fmt: skip
    return kind(**given | SINGLE[kind][1] | changes)


def write_single(root: Path, folder: str, kind: type[calibrations.SingleCalibration], **changes: Any) -> Path:
    path = root / folder / SINGLE[kind][0]
    path.parent.mkdir(exist_ok=True)
    path.write_text(make_single(kind, **changes).to_yaml(), encoding="utf-8")
    return path


def taken(
    root: Path, kind: type[calibrations.SingleCalibration], arch: GpuSpec
) -> tuple[dict[str, float], calibrations.Origin]:
    """Take the coefficients of a chip from calibrations below a folder; the cache knows no second file."""
    return gpu_model.calibration._transferred.__wrapped__(kind, root, calibrations.chip_of(arch), SINGLE[kind][0])


@KINDS
def test_a_single_calibration_reads_what_it_wrote(tmp_path: Path, kind: type[calibrations.SingleCalibration]) -> None:
    path = write_single(tmp_path, "h200-sxm", kind)
    assert kind.load(path) == make_single(kind)
    for item in kind.known:
        assert f": {item.meaning}" in path.read_text()


@KINDS
def test_a_single_calibration_that_is_none(kind: type[calibrations.SingleCalibration]) -> None:
    first, defaults = kind.known[0], defaults_of(kind)
    for coefficients, message in (
        (defaults | {"magic": 1.0}, "those of the model; wrong: magic"),
        (defaults | {first.name: 2 * first.high + 1.0}, f"{first.name} must be in {first.low}..{first.high}"),
        (defaults | {first.name: first.low - 1.0}, f"{first.name} must be in {first.low}..{first.high}"),
        (defaults | {first.name: math.nan}, "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            make_single(kind, coefficients=coefficients)
    with pytest.raises(ValueError, match="Extra inputs"):
        make_single(kind, more=1)


@KINDS
def test_where_single_coefficients_come_from(tmp_path: Path, kind: type[calibrations.SingleCalibration]) -> None:
    defaults, first = defaults_of(kind), kind.known[0]
    assert taken(tmp_path, kind, H200) == (defaults, calibrations.Origin(False, None, "defaults, not fitted"))
    fitted = defaults | {first.name: first.high}
    write_single(tmp_path, "h200-sxm", kind, coefficients=fitted)
    own = taken(tmp_path, kind, H200)
    assert own == (fitted, calibrations.Origin(True, "h200-sxm", "fitted on timings of h200-sxm (2026-01-02)"))
    write_single(tmp_path, "a100-sxm-80gb", kind, gpu="a100-sxm-80gb")
    assert taken(tmp_path, kind, H200) == own  # its own, though another comes first by name
    text = "carried over from a100-sxm-80gb, not fitted on this GPU"
    assert taken(tmp_path, kind, L40S) == (defaults, calibrations.Origin(False, "a100-sxm-80gb", text))


@KINDS
def test_a_single_calibration_older_than_a_coefficient(
    tmp_path: Path, kind: type[calibrations.SingleCalibration]
) -> None:
    defaults, last = defaults_of(kind), kind.known[-1]
    older = {name: value for name, value in defaults.items() if name != last.name}
    write_single(tmp_path, "h200-sxm", kind, coefficients=older)
    assert taken(tmp_path, kind, H200)[0] == older | {last.name: last.neutral.value}


@KINDS
def test_a_single_calibration_in_the_wrong_place(tmp_path: Path, kind: type[calibrations.SingleCalibration]) -> None:
    path = write_single(tmp_path, "l40s", kind)
    with pytest.raises(ArchValidationError, match=rf"l40s/{path.name}: this is a calibration of h200-sxm"):
        taken(tmp_path, kind, L40S)
    path.write_text("gpu: l40s\n", encoding="utf-8")
    with pytest.raises(ArchValidationError, match=rf"l40s/{path.name}: .*validation errors"):
        taken(tmp_path, kind, L40S)


# whose coefficients hold where


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("arch", [H200, H100, L40S], ids=lambda arch: arch.name)
def test_without_calibrations_everything_is_analytic(arch: GpuSpec) -> None:
    for family in ("sm90_wgmma", "sm80_mma"):
        coefficients, origin = gpu_model.coefficients_for(arch, "cublas", family)
        assert coefficients == default_coefficients(family)
        assert (origin.is_calibrated, origin.gpu) == (False, None)
        assert "defaults" in origin.text
    result = GEMMEvaluator(arch).evaluate(*SIZES)
    assert result.source == "analytic"
    assert result.latency_us > 0


def test_coefficients_carry_over(root: Path) -> None:
    """H100 has the kernels of H200: no timing of it is needed, and none is claimed."""
    analytic_us, stamp = GEMMEvaluator(H100).evaluate(*SIZES).latency_us, gpu_model.calibration_stamp(H200)
    write(root, make())
    gpu_model.calibration._coefficients.cache_clear()
    gpu_model.calibration._stamp.cache_clear()
    assert gpu_model.calibration_stamp(H200) != stamp  # costs of other coefficients are other costs
    own, origin = gpu_model.coefficients_for(H200, "cublas", FAMILY)
    assert (own, origin.is_calibrated, origin.gpu) == (FITTED, True, "h200-sxm")
    coefficients, origin = gpu_model.coefficients_for(H100, "cublas", FAMILY)
    result = GEMMEvaluator(H100).evaluate(*SIZES)

    assert coefficients == FITTED
    assert (origin.is_calibrated, origin.gpu) == (False, "h200-sxm")
    assert "carried over from cublas kernels on h200-sxm" in origin.text
    assert result.source == "analytic"
    assert result.latency_us > analytic_us + 1.0  # kernel_us is 3.25 instead of its default
    assert result.latency_us > GEMMEvaluator(H200).evaluate(*SIZES).latency_us  # the chip's own bandwidth


def test_a_changed_or_renamed_spec_keeps_the_coefficients_but_is_not_calibrated(root: Path) -> None:
    write(root, make())
    faster = H200.with_(dram_gb_per_s=9600.0)

    assert "whose spec was changed" in gpu_model.coefficients_for(faster, "cublas", FAMILY)[1].text
    for arch in (faster, H200.with_(name="my-h200")):
        assert gpu_model.coefficients_for(arch, "cublas", FAMILY)[0] == FITTED
        assert GEMMEvaluator(arch).evaluate(*SIZES).source == "analytic"
    assert GEMMEvaluator(H200.with_(title="in other words")).evaluate(*SIZES).source == "calibrated"


def test_own_library_comes_before_others(root: Path) -> None:
    write(root, make(gpu="a100-sxm-80gb", library="trtllm", coefficients=FITTED | {"kernel_us": 4.0}))
    assert gpu_model.coefficients_for(H200, "cublas", FAMILY)[0]["kernel_us"] == 4.0
    assert gpu_model.coefficients_for(H200, "cublas", "sm80_mma")[1].gpu is None

    write(root, make(gpu="h100-sxm"))
    gpu_model.calibration._coefficients.cache_clear()
    assert gpu_model.coefficients_for(H200, "cublas", FAMILY)[0]["kernel_us"] == 3.25


def test_committed_files_are_valid_and_of_measured_gpus() -> None:
    others = (
        "attention-",
        "memory-bound",
        "mixers-",
    )  # files of other kinds, as triton.yaml; tests of their fits read them
    paths = sorted((gpu_model.calibration.data_root() / "calibration").glob("*/*-*.yaml"))
    paths = [path for path in paths if not path.name.startswith(others)]
    assert len(paths) > 30
    for path in paths:
        found = calibrations.load_calibration(path)
        assert (gpu_model.calibration.data_root() / "measured" / found.gpu).is_dir()
        if found.gpu == "h100-sxm":  # kernels that were timed nowhere else; others' coefficients come from an H200
            assert found.family in (
                "simt",
                "sm90_tf32",
                "sm90_tf32_unaligned",
                "sm90_wgmma_full",
                "w4a8_sm90",
                *W4A16_GROUPED_FAMILIES,
            )


# ---- the rule of transfer --------------------------------------------------------------------------------------------


GPUS = [name for name in list_archs() if getattr(load_arch(name), "sm_arch", "").startswith("sm_")]
CALIBRATIONS = data_root() / "calibration"
SIBLINGS = {"sm_103": "sm_100"}
"""Generations without a timed GPU, and the one whose kernels they run."""


def sm_arch(gpu: str) -> str:
    return load_arch(gpu, GpuSpec).sm_arch


def check_transfer(arch: GpuSpec, kind: str, origin: calibrations.Origin, fitted: set[str]) -> None:
    """Defaults only where nothing is fitted, and a GPU of the own or of the sibling generation where one is fitted."""
    assert (origin.gpu is not None) == bool(fitted), (arch.name, kind, origin)
    for generation in (arch.sm_arch, SIBLINGS.get(arch.sm_arch)):
        near = {gpu for gpu in fitted if sm_arch(gpu) == generation}
        if arch.name in fitted or near:
            assert origin.gpu in ({arch.name} if arch.name in fitted else near), (arch.name, kind, origin)
            return


@pytest.mark.parametrize("name", GPUS)
def test_no_kind_falls_to_defaults_where_a_sibling_is_calibrated(name: str) -> None:
    arch = load_arch(name, GpuSpec)

    def fitted(pattern: str) -> set[str]:
        return {path.parent.name for path in CALIBRATIONS.glob(f"*/{pattern}")}

    for library in ATTENTION_LIBRARIES:
        for family, origin in attention_coefficients(arch, library).origins.items():
            holders = {
                gpu for gpu in fitted(f"attention-{library}.yaml") if f"  {family}:  #" in attention_text(gpu, library)
            }
            check_transfer(arch, f"attention {family}", origin, holders)
    check_transfer(arch, "memory-bound", memory_bound_coefficients(arch)[1], fitted("memory-bound.yaml"))
    check_transfer(arch, "triton", triton_coefficients(arch)[1], fitted("triton.yaml"))
    assert collective_coefficients(arch)[1].gpu is not None
    for path in {path.name: path for path in CALIBRATIONS.glob("*/*-*.yaml")}.values():
        library, _, family = path.stem.rpartition("-")
        if family in FAMILIES and arch.sm_arch in FAMILIES[family].sm_archs:
            check_transfer(arch, path.stem, gpu_model.coefficients_for(arch, library, family)[1], fitted(path.name))


@pytest.mark.parametrize("gpu", ["b300", "gb300"])
def test_a_tile_of_nvfp4_costs_more_outside_its_main_loop_on_sm_103(gpu: str) -> None:
    """1.6 to 2.2 times what it costs on sm_100, by timings; fp8 with block scales runs the same kernels on both."""
    costs = {
        family: [
            gpu_model.coefficients_for(load_arch(name, GpuSpec), "trtllm", family)[0] for name in ("b200", "gb200", gpu)
        ]
        for family in ("sm100_block_fp4", "sm100_block_fp8")
    }
    for name in ("tile_cycles", "pingpong_cycles"):
        timed, same, ultra = (values[name] for values in costs["sm100_block_fp4"])
        assert timed == same
        assert 1.6 <= ultra / timed <= 2.2
    timed, _, ultra = (values["epilogue_bytes_per_cycle"] for values in costs["sm100_block_fp4"])
    assert 1.6 <= timed / ultra <= 2.2
    assert costs["sm100_block_fp8"][0] == costs["sm100_block_fp8"][2]


def attention_text(gpu: str, library: str) -> str:
    return (CALIBRATIONS / gpu / f"attention-{library}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("gpu", "preferred", "expected"),
    [
        ("l40s", (), ["l40s", "a100-sxm-80gb", "rtx-5090", "h200-sxm", "b200"]),  # its own before all others
        ("rtx-4090", (), ["l40s", "a100-sxm-80gb", "rtx-5090", "h200-sxm", "b200"]),
        ("rtx-4090", ("sm_90", "sm_80"), ["l40s", "h200-sxm", "a100-sxm-80gb", "rtx-5090", "b200"]),
        ("b300", (), ["b200", "h200-sxm", "rtx-5090", "l40s", "a100-sxm-80gb"]),
    ],
)
def test_the_order_of_transfer(tmp_path: Path, gpu: str, preferred: tuple[str, ...], expected: list[str]) -> None:
    for name in ("a100-sxm-80gb", "b200", "h200-sxm", "l40s", "rtx-5090"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.yaml").touch()
    paths = calibrations.nearest_first(tmp_path, calibrations.chip_of(load_arch(gpu, GpuSpec)), "x.yaml", preferred)
    assert [path.parent.name for path in paths] == expected


# ---- intervals -------------------------------------------------------------------------------------------------------


ROWS = np.array([1, 16, 17, 256, 257, 8192])


def interval(gpu: str | GpuSpec, library: str = "cublas", family: str = "sm90_wgmma", question: str = "x"):  # type: ignore[no-untyped-def]
    arch = load_arch(gpu, GpuSpec) if isinstance(gpu, str) else gpu
    return gpu_model.interval_for(arch, library, family, question, gpu_model.GPU_MODEL_VERSION, is_corrected=False)


def test_regimes_of_gemms() -> None:
    sizes = [*((1, M, 64, 128) for M in ROWS.tolist()), (1, 8, 100, 128), (1, 300, 64, 100)]
    sizes += [(G, 8, 64, 100) for G in (2, 64)]
    places = [calibrations.regime_place(*of) for of in sizes]
    G, M, K, N = np.array(sizes).T

    assert calibrations.regime_places(M, G, K, N).tolist() == places == [0, 0, 1, 1, 2, 2, 3, 5, 6, 7]


def test_intervals_are_quantiles_that_hold_80_percent_of_each_regime() -> None:
    rng = np.random.default_rng(0)
    M = np.repeat([4, 64, 1024], 2000)
    log_errors = rng.normal(0.0, np.repeat([0.05, 0.1, 0.2], 2000))
    found = gpu_model.interval_of(gpu_model.fit_intervals(calibrations.regime_places(M), log_errors))
    factors = np.exp(log_errors)
    low, high = np.exp(found[calibrations.regime_places(M)]).T
    inside = (factors >= low) & (factors <= high)

    assert inside.reshape(3, 2000).mean(axis=1) == pytest.approx([0.8, 0.8, 0.8], abs=0.002)
    assert np.exp(found[0, 1]) == pytest.approx(math.exp(1.2816 * 0.05), rel=0.01)


def test_a_regime_of_few_rows_has_the_quantiles_of_those_like_it_first() -> None:
    places = np.array([0] * 50 + [3] * 50 + [4] * 5)
    found = gpu_model.fit_intervals(places, np.concatenate([np.linspace(-0.1, 0.1, 50), np.linspace(-0.3, 0.3, 55)]))
    high = gpu_model.interval_of(found)[:, 1]

    assert [item.regime for item in found] == ["decode", "uneven decode", "uneven", "all"]
    assert high[4] == high[5] == found[2].high_log > high[0]
    assert (high[3], high[2], high[6]) == (found[1].high_log, found[3].high_log, found[3].high_log)


def test_intervals_of_few_pairs_are_wider_than_those_of_as_many_rows() -> None:
    places, log_errors = np.full(200, 2), np.linspace(-0.1, 0.1, 200)
    ends = [
        gpu_model.fit_intervals(places, log_errors, [(row % num, 1) for row in range(200)])[0].high_log
        for num in (2, 9, 90)
    ]
    assert 0.1 == ends[0] > ends[1] > ends[2] > gpu_model.fit_intervals(places, log_errors)[0].high_log == 0.08


def test_a_prediction_lies_in_its_interval_whatever_its_bias() -> None:
    found = gpu_model.interval_of(gpu_model.fit_intervals(np.zeros(50, np.intp), np.full(50, 0.3)))
    assert found[0].tolist() == [0.0, 0.3]
    with pytest.raises(ValueError, match="low_log"):
        gpu_model.Spread(regime="mid", num_rows=3, low_log=0.1, high_log=0.2)
    with pytest.raises(ValueError, match="regime must be one of"):
        gpu_model.Spread(regime="large", num_rows=3, low_log=-0.1, high_log=0.2)


def test_where_nothing_was_fitted_intervals_are_wider() -> None:
    fitted = calibrations.load_calibration(calibrations.calibration_path("h200-sxm", "cublas", "sm90_wgmma")).intervals
    own, alike, changed = (
        interval("h200-sxm"),
        interval("h100-sxm"),
        interval(load_arch("h200-sxm", GpuSpec).with_(num_sms=99)),
    )

    assert np.array_equal(own, gpu_model.interval_of(fitted))
    assert np.array_equal(changed, gpu_model.interval_of(fitted, calibrations.ALIKE))
    # of one GPU's errors and what carrying over adds, neither is lost and both are told in squares
    assert changed[0, 1] == math.hypot(own[0, 1], calibrations.ALIKE)
    assert np.array_equal(alike, changed)
    assert (alike[:, 0] < own[:, 0]).all()
    assert (own[:, 1] < alike[:, 1]).all()


def test_another_generation_is_wider_still_and_defaults_are_widest() -> None:
    of_ampere = interval("a30", family="sm80_mma")
    of_ada = interval("rtx-5090", family="sm80_mma")
    defaults = interval("v100", family="sm70_mma")

    assert calibrations.ALIKE < calibrations.OTHER_SMS
    assert of_ampere.max() < math.log(1.5)
    assert (np.exp([defaults.min(), defaults.max()])) == pytest.approx((1 / 1.5, 1.5))
    assert not np.array_equal(of_ada, of_ampere)


def test_a_question_that_was_timed_has_an_interval_of_its_own() -> None:
    assert not np.array_equal(interval("h200-sxm", question="f16-cold-burst"), interval("h200-sxm"))
