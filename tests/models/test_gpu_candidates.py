"""Kernel configs of GPUs: what is legal and why not, what a CTA needs, and which there are; numbers by hand."""

import itertools
from functools import cache

import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, InvalidMappingError, UnsupportedError, load_arch
from gemm_eval.arch import SM_ARCHS, GpuSpec, ladder_of, list_archs
from gemm_eval.kernels import Sizes, limits_of_spec
from gemm_eval.kernels.registry import check_kernel, make_variant
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu import LIBRARIES, pack_gpu, unpack_gpu_cost
from gemm_eval.models.gpu.candidates import check_config
from gemm_eval.models.gpu.cost_kernels import ODD_COLUMNS
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.families.family import since
from gemm_eval.models.gpu.sizes import load_bytes_of, pad_problem
from gemm_eval.search.gpu import evaluate_config, find_best_config
from gemm_eval.workload import RunOptions, make_problem
from tests.cases import case
from tests.oracle import naive_gpu
from tools.laws.kernel_space import enumerate_configs, enumerate_kernels, library_for

GPUS = {
    arch.name: arch for arch in map(load_arch, list_archs()) if isinstance(arch, GpuSpec) and arch.sm_arch in SM_ARCHS
}
BY_GENERATION = tuple({arch.sm_arch: arch for arch in GPUS.values()}.values())
H100, A100, L40S, B200 = (GPUS[name] for name in ("h100-sxm", "a100-sxm-80gb", "l40s", "b200"))
RTX_PRO = GPUS["rtx-pro-6000-server"]
V100, T4 = GPUS["v100"], GPUS["t4"]

DENSE = GemmProblem(1, 4096, 4096, 4096)
WGMMA = KernelConfig(
    "sm90_wgmma", 128, 256, 64, 2, 1, 8, 4, Schedule.COOPERATIVE, Decomposition.DATA_PARALLEL, 1, RasterOrder.ALONG_M, 1
)
MMA = WGMMA._replace(
    family="sm80_mma", cta_n=128, cluster_m=1, num_warps=4, num_stages=3, schedule=Schedule.MULTISTAGE
)  # fmt: skip
VOLTA = MMA._replace(family="sm70_mma", num_stages=2)
NVFP4 = make_problem(1, 4096, 4096, 4096, default_dtype=DENSE.input_dtype, dtype="nvfp4")
RTX_FP4 = MMA._replace(
    family="sm120_block_fp4", cta_m=128, cta_k=128, num_warps=8, schedule=Schedule.COOPERATIVE
)  # fmt: skip


# which there are

SHAPES = ((1, 1, 4096, 4096), (1, 16, 1024, 12288), (1, 4096, 4096, 4096), (1, 17, 4097, 4095), (32, 128, 128, 2048))
SCHEMES = ("fp16", "bf16", "tf32", "fp8", "int8", "w4a16", "w8a16")


OUR_TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
TRTLLM_OWN = ("sm_80", "sm_86", "sm_89")
TRTLLM_FP8 = ("sm_89", "sm_120")


def is_refused(arch: GpuSpec, problem: GemmProblem, library: str) -> bool:
    """Whether a library has no kernels for these types on this GPU; ours neither for other sizes."""
    if (library, problem.input_dtype) == ("trtllm", "int8") and not problem.is_weight_quantized:
        return arch.sm_arch not in TRTLLM_OWN
    if (library, problem.input_dtype) == ("trtllm", "fp8") and problem.types.b.scale is None:
        return arch.sm_arch not in TRTLLM_FP8
    if problem.is_weight_quantized == (library == "cublas"):
        return True
    if not problem.is_weight_quantized:
        return library != "cublas" or problem.input_dtype not in arch.tensor_flop_per_cycle
    # our own kernels are of int4, for the GPUs that they are compiled for, and want rows on 16 bytes as trtllm does
    is_theirs = problem.weight_dtype == "int4" and arch.sm_arch in OUR_TARGETS and load_bytes_of(problem) == 16
    return library == "gemm-eval" and not is_theirs


PLAIN_LIBRARIES = [name for name, of in LIBRARIES.items() if not (of.grouped_families or of.default_of)]


@cache
def kernels_of(name: str, library: str, dtype: str, load_bytes: int) -> naive_gpu.Kernels:
    """Kernels are listed once for all sizes whose rows are aligned alike, as only the splits of K depend on sizes."""
    for shape in SHAPES:
        problem = make_problem(*shape, default_dtype=GPUS[name].default_dtype, dtype=dtype)
        if load_bytes_of(problem) == load_bytes:
            return naive_gpu.kernels_of(GPUS[name], problem, library)
    raise AssertionError(load_bytes)


def test_configs_are_distinct_legal_and_those_of_the_kernels() -> None:
    """On a GPU of every generation; sizes take turns, and all ways of two types are listed."""
    shapes = itertools.cycle(SHAPES)
    for arch, library, dtype in itertools.product(BY_GENERATION, PLAIN_LIBRARIES, SCHEMES):
        problem = make_problem(*next(shapes), default_dtype=arch.default_dtype, dtype=dtype)
        with case(arch.name, library, dtype, problem):
            if is_refused(arch, problem, library):
                with pytest.raises(UnsupportedError):
                    list(enumerate_configs(arch, problem, library))
                continue
            if library_for(arch, problem, library) != library:
                continue  # another library's, whose turn comes
            is_listed = library == "gemm-eval" or dtype in ("fp16", "w8a16")
            configs = list(enumerate_configs(arch, problem, library)) if is_listed else []
            assert len(set(configs)) == len(configs)
            if library == "gemm-eval":
                assert len(configs) >= 35
                for config in configs[:: 1 + len(configs) // 20]:
                    check_kernel(
                        make_variant(config, "fp16", "group", 128), Sizes(*problem.sizes[1:]), limits_of_spec(arch)
                    )
                continue
            choices = list(enumerate_kernels(arch, problem, library))
            kernels = kernels_of(arch.name, library, dtype, load_bytes_of(problem))
            ways_of = naive_gpu.ways_of(kernels, arch, problem)
            assert [(list(choice.splits), choice.has_stream_k) for choice in choices] == ways_of
            assert len({choice.config for choice in choices}) == len(choices)
            ways = sum(len(splits) + is_stream for splits, is_stream in ways_of)
            assert not is_listed or len(configs) == len(naive_gpu.RASTERS) * ways
            legal = configs or [choice.config for choice in choices]
            for config in legal[:: 1 + len(legal) // 20]:
                check_config(arch, problem, config)


def test_trtllm_has_its_own_kernels_for_ampere_and_ada() -> None:
    sizes = {"default_dtype": DENSE.input_dtype, "dtype": "w4a16"}
    for arch in (A100, L40S):
        few, many = (list(enumerate_kernels(arch, make_problem(1, M, 4096, 4096, **sizes), "trtllm")) for M in (15, 16))
        runs = {k.config.family for k in few if k.splits}
        assert runs == {"sm80_weight_only", "weight_only_gemv"}
        assert {k.config.family for k in many if k.splits} == {"sm80_weight_only"}
        assert {k.config.num_stages for k in many if k.config.family == "sm80_weight_only"} == {2, 3, 4}
        int8 = {"default_dtype": DENSE.input_dtype, "dtype": "int8", "output_dtype": "fp16"}
        for M, family in ((4, "int8_gemv"), (5, "sm80_int8")):
            kernels = enumerate_kernels(arch, make_problem(1, M, 4096, 4096, **int8), "trtllm")
            found = [k for k in kernels if k.splits]
            assert {k.config.family for k in found} == {family}
            assert all(list(k.splits) == [1] for k in found)


def test_trtllm_leaves_fp8_of_more_than_8_rows_and_batches_to_cublas() -> None:
    sizes = {"default_dtype": DENSE.input_dtype, "dtype": "fp8"}
    for arch in (L40S, load_arch("rtx-pro-6000-server", GpuSpec)):
        for G, M, library in ((1, 1, "trtllm"), (1, 8, "trtllm"), (1, 9, "cublas"), (2, 1, "cublas")):
            problem = make_problem(G, M, 4096, 4096, **sizes)
            assert library_for(arch, problem) == library_for(arch, problem, "trtllm") == library
            result = GEMMEvaluator(arch, disk_cache=False).evaluate_problem(problem)
            assert result.mapping.family == ("fp8_gemv" if library == "trtllm" else "sm89_mma_fp8")
            if library == "cublas":
                other = GEMMEvaluator(arch, disk_cache=False, library=library).evaluate_problem(problem)
                assert (result.latency_us, result.low_us, result.high_us) == (
                    other.latency_us, other.low_us, other.high_us,
                )  # fmt: skip
    for sm_arch in ("sm_80", "sm_90", "sm_100"):
        arch = next(arch for arch in BY_GENERATION if arch.sm_arch == sm_arch)
        if "fp8" in arch.tensor_flop_per_cycle:
            assert library_for(arch, make_problem(1, 1, 4096, 4096, **sizes)) == "cublas"
            with pytest.raises(UnsupportedError, match="trtllm runs fp8 on sm_89, sm_120 alone"):
                LIBRARIES["trtllm"].check(arch, make_problem(1, 1, 4096, 4096, **sizes).types)


def test_cublas_has_kernels_for_one_row_where_its_others_are_those_of_mma_sync() -> None:
    for arch, dtype, has_gemv in (
        (A100, "fp16", True),
        (L40S, "bf16", True),
        (L40S, "fp8", False),
        (H100, "fp16", False),
    ):
        for rows in (1, 2):
            problem = make_problem(1, rows, 4096, 4096, default_dtype=arch.default_dtype, dtype=dtype)
            families = {kernel.config.family for kernel in enumerate_kernels(arch, problem, "cublas") if kernel.splits}
            assert ("gemv" in families) == (has_gemv and rows == 1)


# what is refused

REFUSED: list[tuple[str, GpuSpec, GemmProblem, KernelConfig, str]] = [
    ("family", H100, DENSE, WGMMA._replace(family="sm60_mma"), "one of sm90_wgmma, .*got 'sm60_mma'"),
    ("family", H100, DENSE, WGMMA._replace(family="w4a16_sm90"), "one of sm90_wgmma, .*got 'w4a16_sm90'"),
    ("family", A100, DENSE, WGMMA, "sm90_wgmma needs sm_90, a100-sxm-80gb is sm_80"),
    ("family", H100, DENSE, WGMMA._replace(family="sm90_block_fp8"), "multiplies block-scaled fp8, got fp16"),
    ("family", B200, NVFP4, WGMMA._replace(family="sm100_block_fp8"), "block-scaled fp8, got fp4 .group 16"),
    ("family", H100, DENSE, WGMMA._replace(family="quantize"), "one of sm90_wgmma, .*got 'quantize'"),
    ("cta_k", H100, DENSE, WGMMA._replace(cta_k=32), "cta_k must be 64, .* got 32"),
    ("cta_k", RTX_PRO, NVFP4, RTX_FP4._replace(cta_k=256), "cta_k must be 128, 64 bytes of fp4, got 256"),
    ("cta_k", H100, GemmProblem(1, 64, 64, 64, "fp8"), WGMMA, "cta_k must be 128, .* got 64"),  # type: ignore[arg-type]
    ("schedule", H100, DENSE, WGMMA._replace(schedule=Schedule.MULTISTAGE), "pingpong or cooperative, got multistage"),
    ("schedule", H100, DENSE, MMA._replace(schedule=Schedule.PINGPONG), "multistage, got pingpong"),
    ("tile", H100, DENSE, WGMMA._replace(cta_m=100), "100x256 cannot be cut .* 64 x a multiple of 8"),
    ("tile", H100, DENSE, WGMMA._replace(cta_m=32, cta_n=96), "32x96 cannot be cut"),
    ("tile", H100, DENSE, WGMMA._replace(cta_n=1024), "128x1024 .* at most 512"),
    ("cluster", H100, DENSE, WGMMA._replace(cluster_m=4, cluster_n=4), "4x4 has 16 CTAs, h100-sxm runs at most 8"),
    ("cluster", H100, DENSE, WGMMA._replace(cluster_m=3), "1, 2, 4 or 8 CTAs, got 3"),
    ("cluster", A100, DENSE, MMA._replace(cluster_n=2), "1x2 has 2 CTAs, a100-sxm-80gb runs at most 1"),
    ("cluster", H100, DENSE, MMA._replace(cluster_n=2), "1x2 has 2 CTAs, h100-sxm runs at most 1 with sm80_mma"),
    ("cluster", H100.with_(num_sms=3), DENSE, WGMMA._replace(cluster_n=2), "needs 4 SMs .* has 0 of 3"),
    ("num_warps", H100, DENSE, WGMMA._replace(num_warps=4), "compute with 8 warps, got 4"),
    ("num_warps", A100, DENSE, MMA._replace(num_warps=16), "compute with 4 or 8 warps, got 16"),
    ("num_stages", H100, DENSE, WGMMA._replace(num_stages=1), r"num_stages must be in 2\.\.16, got 1"),
    ("num_stages", H100, DENSE, WGMMA._replace(num_stages=17), r"num_stages must be in 2\.\.16, got 17"),
    ("num_stages", V100, DENSE, VOLTA._replace(num_stages=3), "must be 2 on v100, which has no cp.async, got 3"),
    ("family", V100, DENSE, MMA, "sm80_mma needs sm_80 or .*, v100 is sm_70"),
    ("family", A100, DENSE, VOLTA, "sm70_mma needs sm_70 or sm_75, a100-sxm-80gb is sm_80"),
    ("smem", T4, DENSE, VOLTA._replace(cta_m=256, cta_n=256, num_warps=8), "need 67,584 bytes .* t4 has 65,536 a CTA"),
    ("registers", V100, DENSE, VOLTA._replace(cta_n=192), "192 accumulators .* and 136 other registers need 328, 255"),
    ("split_k", H100, DENSE, WGMMA._replace(split_k=2), "split_k must be 1 without split-K, got 2"),
    ("split_k", H100, DENSE, WGMMA._replace(decomposition=Decomposition.STREAM_K, split_k=2), "must be 1 .* got 2"),
    ("split_k", H100, DENSE, WGMMA._replace(decomposition=Decomposition.SPLIT_K), r"2\.\.64, .*K = 4096, got 1"),
    ("split_k", H100, DENSE, WGMMA._replace(decomposition=Decomposition.SPLIT_K, split_k=65), r"2\.\.64, .*got 65"),
    ("raster_swizzle", H100, DENSE, WGMMA._replace(raster_swizzle=3), "1, 2, 4, 8 or 16, got 3"),
    ("smem", H100, DENSE, WGMMA._replace(num_stages=5), "49,152 bytes need 247,808 bytes .* has 232,448 a CTA"),
    ("smem", L40S, DENSE, MMA._replace(num_stages=4), "32,768 bytes need 133,120 bytes .* l40s has 101,376 a CTA"),
    ("registers", H100, DENSE, WGMMA._replace(schedule=Schedule.PINGPONG), "256 accumulators .* need 312, 232 can be"),
    ("registers", A100, DENSE, MMA._replace(cta_n=256, num_stages=2), "256 accumulators .* need 312, 255 can be"),
    ("registers", H100.with_(registers_per_sm=65536 // 2), DENSE, WGMMA, "needs 52,224 registers, .* has 32,768 an SM"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "arch", "problem", "config", "message"), REFUSED, ids=lambda x: x if isinstance(x, str) else ""
)
def test_an_illegal_config_is_refused_with_demand_and_limit(
    rule: str, arch: GpuSpec, problem: GemmProblem, config: KernelConfig, message: str
) -> None:
    with pytest.raises(InvalidMappingError, match=message) as caught:
        check_config(arch, problem, config)
    assert caught.value.rule == rule
    with pytest.raises(InvalidMappingError, match=message):
        evaluate_config(arch, problem, pack_gpu(arch, problem.types, RunOptions()), config)


def test_every_rule_has_a_case() -> None:
    assert {case[0] for case in REFUSED} == {
        "smem", "registers", "cluster", "tile", "cta_k", "family", "schedule", "num_warps", "num_stages", "split_k",
        "raster_swizzle",
    }  # fmt: skip


# what a CTA needs


# generations of SMs


def test_a_family_runs_on_later_generations_at_the_rate_of_the_last_known_one() -> None:
    assert SM_ARCHS == ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
    assert since("sm_70") == FAMILIES["gemv"].sm_archs == FAMILIES["mma_unaligned"].sm_archs == SM_ARCHS
    assert since("sm_80") == FAMILIES["sm80_mma"].sm_archs == SM_ARCHS[2:]
    assert since("sm_100") == ("sm_100", "sm_103", "sm_120")
    assert [FAMILIES["sm80_mma"].rate_on(name) for name in since("sm_80")] == [1.0, 1.0, 1.0, 0.62, 0.31, 0.31, 1.0]
    assert FAMILIES["sm90_wgmma"].rate_on("sm_100") == 1.0
    for family in FAMILIES.values():
        assert {*family.sm_archs, *family.own_of, *family.rate_frac} <= set(ladder_of(family.sm_archs[0]))


def test_no_two_families_have_one_number() -> None:
    numbers = [family.number for family in FAMILIES.values()]
    assert len(set(numbers)) == len(numbers)


# rows that do not start on 16 bytes


@pytest.mark.parametrize(
    ("arch", "K", "N", "dtype", "family"),
    [
        (H100, 4096, 4096, "fp16", "sm90_wgmma"),
        (H100, 4104, 4096, "fp16", "sm90_wgmma"),
        (H100, 4100, 4096, "fp16", "mma_unaligned"),  # 8,200 bytes
        (H100, 4098, 4096, "fp16", "mma_unaligned"),
        (H100, 4097, 4096, "fp16", "mma_elementwise"),
        (H100, 4096, 4097, "fp16", "mma_elementwise"),
        (H100, 4096, 1, "fp16", "sm90_wgmma"),
        (H100, 4104, 4096, "fp8", "sm90_wgmma"),  # padded
        (H100, 4096, 4097, "fp8", "sm90_wgmma"),
        (H100, 4097, 4096, "int8", "mma_unaligned"),  # padded to 4 bytes
        (H100, 4109, 4096, "int8", "sm80_mma"),  # and so to 16
        (H100, 4112, 4096, "fp8", "sm90_wgmma"),
        (H100, 4096, 4096, "w4a16", "sm90_wgmma"),
        (H100, 4112, 4096, "w4a16", "sm90_wgmma"),  # 2,056 bytes of weights, padded
        (H100, 4096, 4096, "int8", "sm80_mma"),
        (B200, 4096, 4096, "fp16", "sm100_tcgen05"),
        (B200, 4097, 4096, "fp16", "mma_elementwise"),
        (A100, 4097, 4096, "fp16", "mma_elementwise"),
        (L40S, 4096, 4096, "fp8", "sm89_mma_fp8"),
        (L40S, 4096, 4096, "int8", "sm80_mma"),
        (RTX_PRO, 4096, 4096, "fp8", "sm89_mma_fp8"),
        (H100, 4096, 4104, "int8", "sm90_int8"),
        (H100, 4096, 4112, "int8", "sm80_mma"),
        (H100, 4100, 4104, "int8", "mma_unaligned"),
    ],
)
def test_tma_kernels_need_rows_that_start_on_16_bytes(arch: GpuSpec, K: int, N: int, dtype: str, family: str) -> None:
    problem = make_problem(1, 256, K, N, default_dtype=arch.default_dtype, dtype=dtype)
    library = "hypothetical" if dtype == "w4a16" else None
    best = unpack_gpu_cost(find_best_config(arch, problem, pack_gpu(arch, problem.types, RunOptions(library)))[0])
    assert best.config.family == family
    families = {config.family for config in enumerate_configs(arch, problem, library)}
    assert families - {"gemv"} == {family}
    padding = LIBRARIES[library or "cublas"].padding(arch.sm_arch, problem.types)
    loads = {"mma_unaligned": 4, "mma_elementwise": 1, "sm90_int8": ODD_COLUMNS}.get(family, 16)
    assert load_bytes_of(pad_problem(problem, padding), padding) == loads


@pytest.mark.parametrize("library", ["cutlass", "triton", "triton/64x64x32", "torch", "deepgemm"])
def test_libraries_of_grouped_kernels_do_not_run_single_gemms(library: str) -> None:
    evaluator = GEMMEvaluator("h200-sxm", disk_cache=False)

    with pytest.raises(UnsupportedError, match=f"of library {library} only grouped kernels are known"):
        evaluator.evaluate(1, 64, 4096, 4096, dtype="bf16", library=library)
