"""Learned corrections: the trees, their bounds and region, when they are off, and the files that are committed."""

import functools
import hashlib
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from gemm_eval import GemmProblem
from gemm_eval.arch import GpuSpec, data_root, list_archs, load_arch
from gemm_eval.errors import ArchValidationError
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.gpu import correction as _correction
from gemm_eval.models.gpu.correction import MAX_LOG_FACTOR
from gemm_eval.models.gpu.correction_kernels import FEATURES, LEAF, correct, describe
from gemm_eval.search.gpu import find_best_config
from gemm_eval.validation.learned import trees_of
from gemm_eval.validation.subjects.corrections import SAME_PERCENT
from gemm_eval.validation.subjects.w4a16 import list_w4a16_tables
from gemm_eval.validation.tables import list_timings
from gemm_eval.workload import GemmTypes, RunOptions

H200 = load_arch("h200-sxm", GpuSpec)
BF16 = GemmTypes.parse("bf16")
PHYSICS = RunOptions("cublas", "cold", "burst")
COMMITTED = sorted((data_root() / "calibration").glob("*/corrections/*.yaml"))
PAIRS = np.array([[4096, 4096]], np.int64)
REGION = gpu_model.Region(min_m=16, max_m=1024, max_g=1, near=1.0, far=2.0)


def stump(log_factor: float) -> gpu_model.Trees:
    """One tree of one leaf."""
    return gpu_model.Trees(
        np.array([log_factor]), np.zeros(1, np.int16), np.array([LEAF], np.int8), np.zeros(1, np.int16),
        np.ones(1, np.int16), np.ones(1, np.int16), np.zeros(1), PAIRS,
    )  # fmt: skip


def factor_of(trees: gpu_model.Trees, G: int = 1, M: int = 64, K: int = 4096, N: int = 4096, **given: Any) -> float:
    """The factor of a GEMM under trees."""
    bounds = given.get("bounds", (-MAX_LOG_FACTOR, MAX_LOG_FACTOR))
    region = REGION.model_copy(update={"min_us": given.get("min_us", REGION.min_us)})
    packed = gpu_model.pack_correction(H200, BF16, given.get("options", PHYSICS), trees, region, bounds)
    problem = GemmProblem(G, M, K, N, "bf16")
    record = find_best_config(H200, problem, gpu_model.pack_gpu(H200, BF16, PHYSICS))
    correct(record.view(gpu_model.KERNEL_COST_DTYPE), np.zeros(1, np.int64), np.array([problem.sizes]), *packed)
    assert record["latency_us"][0] == record["physics_us"][0] * record["correction_factor"][0]
    return float(record["correction_factor"][0])


# trees


def test_trees_give_what_scikit_learn_predicts() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    rng = np.random.default_rng(0)
    blocks = 64 * rng.integers(1, 200, (400, 2))
    sizes = np.column_stack([np.ones(400, np.int64), rng.integers(1, 4096, 400), blocks])
    packed = gpu_model.pack_gpu(H200, BF16, PHYSICS)
    problems = [GemmProblem(*row, "bf16") for row in sizes.tolist()]
    records = np.concatenate([find_best_config(H200, problem, packed) for problem in problems])
    features = np.empty((400, len(FEATURES)))
    describe(
        records.view(gpu_model.KERNEL_COST_DTYPE),
        np.repeat(gpu_model.pack_limits(H200, BF16, PHYSICS), 400),
        sizes,
        features,
    )
    targets = 0.05 * np.sin(features[:, 0]) + 0.02 * rng.standard_normal(400)
    fitted = ensemble.HistGradientBoostingRegressor(max_iter=30, max_leaf_nodes=15).fit(features, targets)
    wide = gpu_model.Region(min_m=1, max_m=1 << 20, max_g=1, near=30.0, far=40.0)
    trees = trees_of(fitted, PAIRS, LEAF)
    correct(
        records.view(gpu_model.KERNEL_COST_DTYPE), np.arange(400), sizes,
        *gpu_model.pack_correction(H200, BF16, PHYSICS, trees, wide, (-MAX_LOG_FACTOR, MAX_LOG_FACTOR)),
    )  # fmt: skip

    assert np.log(records["correction_factor"]) == pytest.approx(fitted.predict(features), abs=1e-12)
    assert len(trees.roots) == 30


def test_features_are_named_in_the_order_they_are_written() -> None:
    problem = GemmProblem(2, 48, 4096, 2052, "bf16", layout="nt")
    record = find_best_config(H200, problem, gpu_model.pack_gpu(H200, problem.types, PHYSICS))
    features = np.empty((1, len(FEATURES)))
    limits = gpu_model.pack_limits(H200, problem.types, PHYSICS)
    describe(record.view(gpu_model.KERNEL_COST_DTYPE), limits, np.array([problem.sizes]), features)
    found = dict(zip(FEATURES, features[0].tolist(), strict=True))

    assert (found["M"], found["N"], found["K"], found["G"]) == (math.log2(48), math.log2(2052), 12.0, 1.0)
    assert (found["a_along_m"], found["b_along_n"]) == (1.0, 1.0)
    assert (found["M_alignment"], found["N_alignment"], found["K_alignment"]) == (3.0, 2.0, 3.0)
    assert found["latency"] == pytest.approx(math.log2(record["physics_us"][0]))
    assert found["cta_m"] == math.log2(record["cta_m"][0])
    assert found["dram_share"] == pytest.approx(record["dram_us"][0] / record["physics_us"][0])
    assert found["power_share"] == pytest.approx(record["power_us"][0] / record["physics_us"][0])


# bounds and region


def test_a_factor_holds_at_known_sizes_within_bounds() -> None:
    assert [factor_of(stump(log)) for log in (0.1, -0.1)] == pytest.approx([math.exp(0.1), math.exp(-0.1)])
    assert factor_of(stump(5.0)) == pytest.approx(1.5)
    assert factor_of(stump(5.0), bounds=(-0.1, 0.2)) == pytest.approx(math.exp(0.2))
    assert factor_of(stump(-5.0), bounds=(-0.1, 0.2)) == pytest.approx(math.exp(-0.1))


def test_a_factor_fades_with_the_distance_from_known_pairs() -> None:
    factors = [factor_of(stump(0.2), N=N) for N in (4096, 8192, 11584, 16384, 32768)]

    assert factors[:2] == pytest.approx([math.exp(0.2)] * 2)
    assert factors[2] == pytest.approx(math.exp(0.1), rel=1e-4)
    assert factors[3:] == [1.0, 1.0]


def test_a_factor_fades_beyond_the_rows_of_its_data_and_with_batches() -> None:
    inside, half, off, few = (factor_of(stump(0.2), M=M) for M in (1024, 1448, 2048, 8))

    assert (inside, off, few) == (pytest.approx(math.exp(0.2)), 1.0, 1.0)
    assert half == pytest.approx(math.exp(0.1), rel=1e-3)
    assert inside > factor_of(stump(0.2), G=2) > factor_of(stump(0.2), G=8) == 1.0


def test_a_factor_fades_below_the_least_latency_of_its_data() -> None:
    kernel = gpu_model.pack_gpu(H200, BF16, PHYSICS)
    us = float(find_best_config(H200, GemmProblem(1, 64, 4096, 4096, "bf16"), kernel)["physics_us"][0])
    at, half, off = (factor_of(stump(0.2), min_us=us * times) for times in (1.0, math.sqrt(2.0), 2.0))

    assert (at, off) == (pytest.approx(math.exp(0.2)), pytest.approx(1.0))
    assert half == pytest.approx(math.exp(0.1))


def test_records_without_a_kernel_stay() -> None:
    records: npt.NDArray[np.void] = np.zeros(1, gpu_model.GPU_COST_DTYPE)
    packed = gpu_model.pack_correction(H200, BF16, PHYSICS, stump(0.1), REGION, (-0.4, 0.4))
    correct(records.view(gpu_model.KERNEL_COST_DTYPE), np.zeros(1, np.int64), np.array([[1, 64, 4096, 4096]]), *packed)

    assert records.tobytes() == bytes(records.nbytes)


# questions


@pytest.mark.parametrize(
    ("dtype", "options", "question"),
    [
        ("bf16", PHYSICS, "f16-cold-burst"),
        ("fp16", PHYSICS._replace(correction=True), "f16-cold-burst"),
        ("fp8", PHYSICS._replace(l2="warm", clock="sustained"), "fp8-warm-sustained"),
        ("fp8_block", PHYSICS, "fp8-g128x128-cold-burst"),
        ("nvfp4", PHYSICS, "fp4-g16-cold-burst"),
        ("w4a16", PHYSICS._replace(library="trtllm"), "f16-int4-g128-cold-burst"),
        ("fp32", PHYSICS, "fp32-c32-cold-burst"),
    ],
)
def test_a_question_names_types_and_states(dtype: str, options: RunOptions, question: str) -> None:
    assert gpu_model.question_of(GemmTypes.parse(dtype), options) == question


# when they are off


def question_on(arch: GpuSpec, version: str = gpu_model.GPU_MODEL_VERSION, question: str = "f16-cold-burst") -> Any:
    return gpu_model.find_correction(arch, "cublas", "sm90_wgmma", question, version)


def test_a_correction_is_of_one_gpu_with_its_coefficients_and_model() -> None:
    assert question_on(H200) is not None
    assert question_on(load_arch("h100-sxm", GpuSpec)) is None
    assert question_on(H200.with_(num_sms=144)) is None
    assert question_on(H200, version="gpu-0") is None
    assert question_on(H200, question="fp32-c32-cold-burst") is None


def test_other_coefficients_turn_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    coefficients, origin = gpu_model.coefficients_for(H200, "cublas", "sm90_wgmma")
    monkeypatch.setattr(_correction, "coefficients_for", lambda *_: (coefficients | {"kernel_us": 9.0}, origin))
    assert question_on(H200) is None


def test_four_bit_floats_take_the_correction_of_int4_with_a_wider_interval() -> None:
    def found(weights: str, family: str = "w4a16") -> _correction.Found | None:
        question = f"f16-{weights}-cold-burst"
        return _correction.nearest_correction(H200, "gemm-eval", family, question, gpu_model.GPU_MODEL_VERSION)

    timed, taken = found("int4-g128"), found("fp4-g16")
    assert timed is not None
    assert taken == timed._replace(carried_log=_correction.ALIKE)
    assert found("int4-g64") is None
    assert found("fp4-g16", "w4a8_sm90") is None


def test_it_must_be_asked_for_below_the_evaluator() -> None:
    assert gpu_model.pack_gpu(H200, BF16, PHYSICS).correction is None
    assert gpu_model.pack_gpu(H200, BF16, PHYSICS._replace(correction=False)).correction is None
    assert gpu_model.pack_gpu(H200, BF16, PHYSICS._replace(correction=True)).correction is not None


# files


@functools.cache
def names_of_timings(gpu: str, *, is_sibling: bool) -> set[str]:
    """Return the names of sets that a correction may be fitted on: all of its GPU, of siblings the default ones."""
    if is_sibling:
        return {f"{gpu}/{item.name}" for item in list_timings(gpu)}
    tables = {f"w4a16/{path.stem}" for path in list_w4a16_tables(gpu)}
    return tables | {item.name for item in list_timings(gpu, has_candidates=True)}


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
def test_committed_corrections_are_those_of_today(path: Path) -> None:
    found, trees = gpu_model.load_correction(path)
    arch = load_arch(found.gpu, GpuSpec)
    coefficients, origin = gpu_model.coefficients_for(arch, found.library, found.family)

    assert origin.is_calibrated
    # else they are off: gemm-eval calibrate correction fits them anew
    assert found.physics == gpu_model.physics_digest(coefficients, gpu_model.GPU_MODEL_VERSION)
    assert (found.model_version, found.features) == (gpu_model.GPU_MODEL_VERSION, FEATURES)
    names = {data.data for data in found.data}
    siblings = {name.split("/")[0] for name in names} & set(list_archs())
    known = names_of_timings(found.gpu, is_sibling=False).union(
        *(names_of_timings(gpu, is_sibling=True) for gpu in siblings)
    )
    assert names <= known
    gains = {item.regime: item.physics_mape_percent - item.corrected_mape_percent for item in found.errors}
    is_better = gains["all"] > 0.0 and min(gains.values()) > -SAME_PERCENT
    assert found.is_on is (trees is not None)
    assert is_better or not found.is_on
    arrays = path.with_suffix(".npz")
    assert arrays.is_file() is found.is_on
    if found.is_on:
        assert arrays.stat().st_size < 100_000


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A correction, in a data folder of its own."""
    folder = tmp_path / "calibration" / "h200-sxm" / "corrections"
    folder.mkdir(parents=True)
    (path,) = (path for path in COMMITTED if path.stem == "cublas-sm90_wgmma-fp8-cold-burst")
    for suffix in (".yaml", ".npz"):
        shutil.copy(path.with_suffix(suffix), folder)
    monkeypatch.setattr(_correction, "data_root", lambda: tmp_path)
    return folder / path.name


def change(path: Path, **values: object) -> None:
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values))


def test_a_correction_comes_back(copy: Path) -> None:
    found, trees = gpu_model.load_correction(copy)

    assert trees is not None
    assert trees.depth[0] <= 12
    assert found.region.min_m == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpu": "b200"}, "this is a correction of b200/"),
        ({"max_log_factor": 0.6}, "max_log_factor"),
        ({"region": {"min_m": 1, "max_m": 2, "max_g": 1, "near": 2.0, "far": 2.0}}, "near must be below far"),
        ({"arrays_sha256": "0" * 64}, "is not the file that was written with it"),
        ({"more": 1}, "more"),
    ],
)
def test_a_malformed_correction_is_refused(copy: Path, values: dict[str, object], message: str) -> None:
    change(copy, **values)
    with pytest.raises(ArchValidationError, match=message):
        gpu_model.load_correction(copy)


def test_arrays_that_are_no_trees_are_refused(copy: Path) -> None:
    _, trees = gpu_model.load_correction(copy)
    assert trees is not None
    left = trees.left.copy()
    left[0] = 0  # a walk that never comes to a leaf
    with copy.with_suffix(".npz").open("wb") as file:
        trees._replace(left=left).save(file)
    change(copy, arrays_sha256=hashlib.sha256(copy.with_suffix(".npz").read_bytes()).hexdigest())
    with pytest.raises(ArchValidationError, match="holds no trees"):
        gpu_model.load_correction(copy)


def test_a_correction_that_is_off_needs_no_trees(copy: Path) -> None:
    copy.with_suffix(".npz").unlink()
    change(copy, is_on=False)
    assert gpu_model.load_correction(copy)[1] is None
