"""The search over our W4A16 kernels against brute force: equal to the bit, bounded from below, listed, in batches."""

import numba
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_eval import DType, GEMMEvaluator, GemmProblem, InfeasibleError
from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu import GPU_COST_DTYPE, pack_gpu, unpack_gpu_cost
from gemm_eval.models.gpu.cost_kernels import BEST_RASTER
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.packed import Packed, pack_w4a16
from gemm_eval.models.gpu.w4a16.candidates import has_our_kernels, w4a16_types
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_SETS
from gemm_eval.models.gpu.w4a16.cost_kernels import is_beaten, row_bounds_us, w4a16_cost, w4a16_terms
from gemm_eval.models.gpu.w4a16.shared_kernels import MAX_SPLITS, list_splits
from gemm_eval.search.gpu import evaluate_config, find_best_config, find_best_config_many, find_top_configs
from gemm_eval.workload import RunOptions, problem_of
from tests import strategies
from tests.cases import without_counts
from tools.laws.kernel_space import enumerate_configs

Case = tuple[GpuSpec, GemmProblem, RunOptions]
Records = npt.NDArray[np.void]

TYPES = GemmProblem(1, 64, 64, 64, DType.FP16, DType.INT4, group_size=128)
# plain Python takes 50 us for a config, and kernels of Hopper are twice as many
ARCHS = tuple(
    arch
    for arch in strategies.GPUS
    if has_our_kernels(arch, TYPES.types) and (not numba.config.DISABLE_JIT or arch.sm_arch != "sm_90")
)
few = settings(max_examples=max(1, settings.default.max_examples // 4))
FIRST_LISTED = 20
NUM_LOOKED_AT = 50  # kernels of a menu


@st.composite
def problems(draw: st.DrawFn, *, max_log2: int = 14) -> GemmProblem:
    """GEMMs that our kernels run; few tokens and many are equally frequent, ties between configs too."""
    mode = draw(st.sampled_from(("column", "group", "group", "group_zero", "mxfp4", "nvfp4")))
    groups = {"column": (0,), "mxfp4": (32,), "nvfp4": (16,)}.get(mode, (32, 64, 128))
    types = w4a16_types(draw(st.sampled_from((DType.FP16, DType.BF16))), mode, draw(st.sampled_from(groups)))
    sizes = st.sampled_from((8, 64, 128, 136, 1024, 4096, 8192, 12288)) | st.floats(3.0, max_log2).map(
        lambda x: int(2.0**x) // 8 * 8
    )
    tokens = st.sampled_from((1, 2, 4, 8, 16, 17, 64, 65, 256, 4096)) | st.floats(0.0, 13.0).map(lambda x: int(2.0**x))
    return problem_of(types, draw(st.sampled_from((1, 1, 1, 3))), draw(tokens), draw(sizes), draw(sizes))


@st.composite
def chips(draw: st.DrawFn) -> GpuSpec:
    """Presets, and chips of little shared memory or of a strange number of SMs."""
    arch = draw(st.sampled_from(ARCHS))
    smem_frac = draw(st.sampled_from((1.0, 1.0, 1.0, 0.5, 0.1)))
    num_sms = draw(st.sampled_from((arch.num_sms, arch.num_sms, 7, 200)))
    return arch.with_(smem_per_cta_bytes=int(arch.smem_per_cta_bytes * smem_frac), num_sms=num_sms)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    arch = draw(chips())
    options = RunOptions(
        draw(st.sampled_from((None, "gemm-eval") if arch.sm_arch == "sm_90" else ("gemm-eval",))),
        draw(st.sampled_from(("cold", "warm"))),
        draw(st.sampled_from(("burst", "sustained"))),
    )
    return arch, draw(problems()), options


@st.composite
def packed_anew(draw: st.DrawFn) -> tuple[GpuSpec, GemmProblem, Packed]:
    """A record with any coefficients within their ranges, at the ends as often as between."""
    arch, problem, options = draw(cases())
    fracs = st.sampled_from((0.0, 1.0)) | st.floats(0.0, 1.0)
    coefficients = {
        family: {item.name: item.low + draw(fracs) * (item.high - item.low) for item in FAMILIES[family].coefficients}
        for family in W4A16_SETS
    }
    packed = pack_w4a16(
        arch, problem.types, coefficients, l2=options.l2, clock=options.clock, is_calibrated=False,
        make_fallback=lambda: pack_gpu(arch, problem.types, options).fallback, correction=None, carried=None,
    )  # fmt: skip
    return arch, problem, packed


def by_brute_force(arch: GpuSpec, problem: GemmProblem, packed: Packed) -> Records:
    """The cost of every config, evaluated one by one in the order of the registry."""
    configs = list(enumerate_configs(arch, problem, "gemm-eval"))
    found = [evaluate_config(arch, problem, packed, config) for config in configs]
    assert [unpack_gpu_cost(record[0]).config for record in found] == configs
    return np.concatenate(found) if found else np.zeros(0, GPU_COST_DTYPE)


def check_search(arch: GpuSpec, problem: GemmProblem, packed: Packed) -> None:
    truth = by_brute_force(arch, problem, packed)
    if len(truth) == 0:
        for search in (find_best_config, lambda *given: find_top_configs(*given, 3)):
            with pytest.raises(InfeasibleError):
                search(arch, problem, packed)
        return
    best = int(np.argmin(truth["latency_us"]))  # the first of equals
    found = find_best_config(arch, problem, packed)
    listed = find_top_configs(arch, problem, packed, FIRST_LISTED)

    assert without_counts(found) == without_counts(truth[best : best + 1])
    assert 1 <= found["num_candidates"][0] <= len(truth)
    order = np.argsort(truth["latency_us"], kind="stable")[:FIRST_LISTED]
    assert without_counts(listed) == without_counts(truth[order])
    assert (listed["num_candidates"] == len(truth)).all()


@few
@given(packed_anew(), cases())
def test_search_equals_brute_force_whatever_the_coefficients(
    anew: tuple[GpuSpec, GemmProblem, Packed], case: Case
) -> None:
    """The bound of the search must hold for those that are shipped, and for all that a fit may find."""
    arch, problem, options = case
    check_search(*anew)
    check_search(arch, problem, pack_gpu(arch, problem.types, options))


@few
@given(packed_anew(), st.integers(0, NUM_LOOKED_AT))
def test_bounds_are_below_the_cost_of_every_config(case: tuple[GpuSpec, GemmProblem, Packed], start: int) -> None:
    _, problem, packed = case
    menu, columns, splits = packed.candidates, packed.columns, np.empty(MAX_SPLITS, int)
    p, coefficients = packed.params[0], packed.coefficients[0]
    terms = w4a16_terms(p, coefficients[0], problem.K, problem.N, np.array([problem.M]), np.array([problem.G]), False)
    bounds = np.empty(len(menu))
    row_bounds_us(p, None, terms, columns, 0, bounds)
    assert (bounds > 0).all()
    is_shared = (menu["coefficient_set"] == W4A16_SETS.index("w4a16_sm90")) & (menu["ctas_per_sm"] > 1)
    step = max(1, len(menu) // NUM_LOOKED_AT)
    for index in {*range(start % step, len(menu), step), *np.flatnonzero(is_shared).tolist()}:
        row = menu[index]
        c = coefficients[row["coefficient_set"]]
        for parts in splits[: list_splits(p, row, terms, splits)].tolist():
            latency_us = w4a16_cost(p, row, c, terms, parts, BEST_RASTER).latency_us
            assert bounds[index] <= latency_us, (row, parts)
            asked = p, row, columns, index, c, terms, parts
            assert not is_beaten(*asked, latency_us), (row, parts)
            assert not is_beaten(*asked, np.inf), (row, parts)
            assert is_beaten(*asked, p["launch_us"]), (row, parts)  # of a batch too: some kernels launch once for it


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="kernels of Hopper take too long in plain Python")
def test_nearly_all_configs_are_shut_out_by_bounds() -> None:
    """Costs are what takes long: of the 200 to 1,800 configs of a GEMM few are computed."""
    arch = next(arch for arch in ARCHS if arch.name == "h200-sxm")
    packed = pack_gpu(arch, TYPES.types, RunOptions())
    costed = [
        find_best_config(arch, problem_of(TYPES.types, 1, M, K, N), packed)["num_candidates"][0]
        for M in (1, 4, 16, 48, 64, 128, 512, 2048, 8192)
        for K, N in ((4096, 1024), (4096, 4096), (7168, 2048), (4096, 14336), (8192, 28672))
    ]
    assert np.median(costed) <= 10
    assert max(costed) <= 100


@few
@given(st.data(), st.sampled_from(ARCHS))
def test_a_batch_is_what_one_by_one_gives(data: st.DataObject, arch: GpuSpec) -> None:
    """Dense types, weights of other kinds and rows that our kernels do not take stand between, in any order."""
    drawn = st.one_of(problems(), strategies.gpu_problems(arch), strategies.gpu_problems(arch, quantized=True))
    different = data.draw(st.lists(drawn, min_size=1, max_size=6))
    options = RunOptions(None, data.draw(st.sampled_from(("cold", "warm"))))
    packed = [pack_gpu(arch, problem.types, options) for problem in different]
    which = np.array(data.draw(st.lists(st.integers(0, len(different) - 1), min_size=1, max_size=60)), np.int64)
    shifts = data.draw(st.lists(st.sampled_from((0, 0, 1, 4, 8)), min_size=len(which), max_size=len(which)))
    sizes = np.array([different[index].sizes for index in which], np.int64)
    # the same types, with and without rows that start on 16 bytes, where they have kernels for both
    aligned = [types.is_block_scaled or types.a.dtype is DType.FP4 for types in (one.types for one in different)]
    sizes[:, 2] += np.where(np.array(aligned)[which], 0, shifts)
    seen: list[int] = []

    many = find_best_config_many(packed, which, sizes, on_progress=seen.append)

    alone = [
        find_best_config(arch, resized(different[index], of), packed[index])
        for index, of in zip(which.tolist(), sizes.tolist(), strict=True)
    ]
    assert many.tolist() == [record.tolist()[0] for record in alone]
    assert sum(seen) == len(which)


def resized(problem: GemmProblem, sizes: list[int]) -> GemmProblem:
    names = ("input_dtype", "weight_dtype", "output_dtype", "group_size", "scale_dtype", "zero_dtype", "group_n")
    return GemmProblem(*sizes, **{name: getattr(problem, name) for name in names})


@few
@given(st.lists(problems() | strategies.gpu_problems(ARCHS[0]), min_size=1, max_size=12))
def test_a_table_of_an_evaluator_is_what_single_questions_give(asked: list[GemmProblem]) -> None:
    many, single = (GEMMEvaluator(ARCHS[0], disk_cache=False) for _ in range(2))
    assert list(many.evaluate_many(asked)) == [single.evaluate_problem(problem) for problem in asked]
