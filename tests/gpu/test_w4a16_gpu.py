"""Every W4A16 kernel on a real GPU, against float64: right to rounding, repeatable, and writing nothing but `out`."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from gemm_eval import kernels
from gemm_eval.device import runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.kernels.families import Variant, families
from gemm_eval.kernels.registry import compile_for, make_variant, occupancy_of, why_not
from gemm_eval.mapping import Decomposition, KernelConfig

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # the vendor's packages warn as they like

WORST_ERROR = {DType.FP16: 1e-3, DType.BF16: 5e-3}  # ||C - C64|| / ||C64||
GUARD_ELEMS = 4096  # on each side of an output
NAN_BITS = {DType.FP16: 0x7E01, DType.BF16: 0x7FC1}
FAMILIES = families()
FIRST_MODE = "fp16", "group", 128
CONFIGS = [config for family in FAMILIES.values() for config in family.configs()]
# modes and types of the sample, with sizes that are no multiples of a block, a group or a tile
SAMPLE = [
    ("fp16", "group", 32, 200, 328), ("fp16", "group", 64, 136, 72), ("fp16", "group_zero", 128, 1032, 184),
    ("bf16", "group_zero", 32, 328, 264), ("bf16", "group", 128, 520, 520), ("fp16", "column", None, 584, 136),
    ("bf16", "column", None, 8, 8), ("bf16", "group_zero", 64, 2056, 648), ("fp16", "mxfp4", 32, 328, 264),
    ("bf16", "mxfp4", 32, 1032, 184), ("fp16", "nvfp4", 16, 200, 328), ("bf16", "nvfp4", 16, 520, 520),
]  # fmt: skip


class Case(NamedTuple):
    """One GEMM with random data; the answer in float64."""

    A: Any
    packed: kernels.PackedW4
    bias: Any
    alpha: float
    expected: Any


@pytest.fixture(scope="module")
def limits(cupy: Any) -> kernels.DeviceLimits:
    return runtime.limits_of_device(runtime.current_device())


def to_bits(values: np.ndarray[Any, Any], activation: DType) -> Any:
    """As kernels take them: float16, or the bits of bf16 in uint16."""
    if activation is DType.FP16:
        return values.astype(np.float16)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_float(cupy: Any, stored: Any, activation: DType) -> Any:
    if activation is DType.FP16:
        return stored.astype(cupy.float64)
    return (stored.astype(cupy.uint32) << 16).view(cupy.float32).astype(cupy.float64)


_packed: dict[tuple[Any, ...], tuple[kernels.PackedW4, Any]] = {}


def weights_of(cupy: Any, K: int, N: int, activation: str, mode: str, group_size: int | None, seed: int) -> Any:
    """Random weights and their float64 values; kept, as many kernels take the same."""
    key = (K, N, activation, mode, group_size, seed)
    if key not in _packed:
        random = np.random.default_rng(seed)
        weights = random.standard_normal((K, N)).astype(np.float32) * random.uniform(0.01, 0.1, N).astype(np.float32)
        packed = kernels.pack_w4(weights, group_size, mode, activation=activation).to_gpu()
        _packed[key] = packed, kernels.dequantize(packed)
    return _packed[key]


def make_case(
    cupy: Any,
    sizes: kernels.Sizes,
    activation: str,
    mode: str,
    group_size: int | None,
    seed: int,
    has_bias: bool,
    alpha: float,
) -> Case:
    packed, dense = weights_of(cupy, sizes.K, sizes.N, activation, mode, group_size, seed % 2)
    random = np.random.default_rng(seed)
    dtype = DType(activation)
    A = cupy.asarray(to_bits(random.standard_normal((sizes.M, sizes.K)), dtype))
    bias = cupy.asarray(to_bits(random.standard_normal(sizes.N), dtype)) if has_bias else None
    expected = alpha * (to_float(cupy, A, dtype) @ dense)
    if bias is not None:
        expected = expected + to_float(cupy, bias, dtype)
    return Case(A, packed, bias, alpha, expected)


def run(cupy: Any, case: Case, config: KernelConfig | None, **more: Any) -> Any:
    """C as stored, from memory full of NaN with guards on both sides that must stay as they were."""
    M, N = case.expected.shape
    activation = case.packed.activation
    poison = NAN_BITS[activation]
    memory = cupy.full(2 * GUARD_ELEMS + M * N, poison, cupy.uint16)
    out = memory[GUARD_ELEMS : GUARD_ELEMS + M * N].reshape(M, N)
    out = out.view(cupy.float16) if activation is DType.FP16 else out
    assert kernels.w4a16_gemm(case.A, case.packed, case.bias, case.alpha, out, config or "auto", **more) is out
    cupy.cuda.runtime.deviceSynchronize()
    assert bool((memory[:GUARD_ELEMS] == poison).all()), "written before out"
    assert bool((memory[-GUARD_ELEMS:] == poison).all()), "written behind out"
    return out


def check(cupy: Any, case: Case, config: KernelConfig | None, **more: Any) -> None:
    activation = case.packed.activation
    out = run(cupy, case, config, **more)
    found = to_float(cupy, out, activation)
    assert bool(cupy.isfinite(found).all()), "elements that were never written, or NaN"
    error = float(cupy.linalg.norm(found - case.expected) / cupy.linalg.norm(case.expected))
    assert error <= WORST_ERROR[activation], f"relative error {error:.2e}"
    largest = float(abs(found - case.expected).max() / abs(case.expected).max())
    assert largest <= 4 * WORST_ERROR[activation], f"an element is off by {largest:.2e} of the largest"
    again = run(cupy, case, config, **more)
    assert bool((out.view(cupy.uint16) == again.view(cupy.uint16)).all()), "another result the second time"
    for scratch in runtime._scratch.values():
        (counters,) = [buffer for buffer in scratch.buffers if buffer.data.ptr == scratch.counters]
        assert not bool(counters.any()), "counters left behind"


def splits_of(
    config: KernelConfig, sizes: kernels.Sizes, limits: kernels.DeviceLimits, *rest: Any
) -> Iterator[KernelConfig]:
    """The legal ways to run one kernel: not split, least, most, stream-K."""
    variant = make_variant(config, *(rest or FIRST_MODE))
    if why_not(variant, sizes, limits) is not None:
        return
    legal = [one.config for one in kernels.legal_splits(variant, sizes, limits)]
    split = [c for c in legal if c.decomposition is Decomposition.SPLIT_K]
    yield from dict.fromkeys([c for c in legal if c not in split] + split[:1] + split[-1:])


def name(config: KernelConfig) -> str:
    return (
        f"{config.family}-{config.cta_m}x{config.cta_n}x{config.cta_k}-c{config.cluster_m}x{config.cluster_n}-"
        f"{config.schedule.name.lower()}-w{config.num_warps}-s{config.num_stages}-k{config.split_k}-"
        f"{config.raster_order.name[-1]}{config.raster_swizzle}"
    )


def seed_of(config: KernelConfig) -> int:
    return zlib.crc32(name(config).encode())


def sizes_for(config: KernelConfig, K: int, N: int) -> list[kernels.Sizes]:
    """One token, a tile that is not full, and more tiles than one with a rest; enough for every cluster."""
    few = max(1, config.cta_m - 1)
    many = 2 * config.cluster_m * config.cta_m + 3
    N = max(N, config.cluster_n * config.cta_n)
    return [kernels.Sizes(M, K, N) for M in dict.fromkeys((1, few, many))]


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_every_kernel(cupy: Any, limits: kernels.DeviceLimits, config: KernelConfig) -> None:
    if why_not(make_variant(config, *FIRST_MODE), None, limits) is not None:
        pytest.skip("not on this GPU")
    num_run = 0
    for i, sizes in enumerate(sizes_for(config, 1024, 384)):
        case = make_case(cupy, sizes, "fp16", "group", 128, seed_of(config) + i, bool(i % 2), 1.0 if i else 0.5)
        for split in splits_of(config, sizes, limits):
            check(cupy, case, split)
            num_run += 1
    assert num_run


def configs_of_mode(limits: kernels.DeviceLimits, family: str, index: int) -> list[KernelConfig]:
    """Four kernels of a family or a few more, other ones for each mode."""
    configs = [
        entry.variant.config
        for entry in kernels.list_kernels(limits, *SAMPLE[index][:3])
        if entry.variant.config.family == family and entry.refusal is None
    ]
    step = max(1, len(configs) // 4)
    return configs[index % step :: step]


@pytest.mark.parametrize("index", range(len(SAMPLE)))
@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_mode(cupy: Any, limits: kernels.DeviceLimits, family: str, index: int) -> None:
    activation, mode, group_size, K, N = SAMPLE[index]
    configs = configs_of_mode(limits, family, index)
    if not configs:
        pytest.skip("not on this GPU")
    for config in configs:
        for i, sizes in enumerate(sizes_for(config, K, N)):
            seed = seed_of(config) + 7 * index + i
            case = make_case(cupy, sizes, activation, mode, group_size, seed, i != 1, (1.0, -0.75, 3.0)[i % 3])
            for split in splits_of(config, sizes, limits, activation, mode, group_size):
                check(cupy, case, split)


@pytest.mark.parametrize("M", [1, 2, 3, 8, 16, 17, 33, 64, 127, 256, 511])
@pytest.mark.parametrize(("mode", "group_size"), [("group", 128), ("mxfp4", 32), ("nvfp4", 16)])
@pytest.mark.parametrize("activation", ["fp16", "bf16"])
def test_the_choice(cupy: Any, activation: str, mode: str, group_size: int, M: int) -> None:
    check(cupy, make_case(cupy, kernels.Sizes(M, 1536, 1000), activation, mode, group_size, M, True, 1.5), None)


def variants_ahead(test: str, limits: kernels.DeviceLimits, params: Mapping[str, Any]) -> Iterator[Variant]:
    """Yield kernels that a test runs, for `conftest.py` to compile."""
    if test == "test_every_kernel":
        yield make_variant(params["config"], *FIRST_MODE)
    elif test == "test_every_mode":
        for config in configs_of_mode(limits, params["family"], params["index"]):
            yield make_variant(config, *SAMPLE[params["index"]][:3])
    elif test == "test_the_choice":
        types = params["activation"], params["mode"], params["group_size"]
        mode = kernels.WeightMode[types[1].upper()]
        config = kernels.choose(
            kernels.Sizes(params["M"], 1536, 1000), DType(types[0]), mode, types[2], kernels.spec_of_device(0), limits
        )
        yield make_variant(FAMILIES[config.family].compiled(config), *types)
    elif test == "test_the_whole_span_of_scales":
        for config in configs_of_span(limits, params["activation"], params["family"]):
            yield make_variant(FAMILIES[config.family].compiled(config), params["activation"], "mxfp4", 32)


SPAN_SIZES = kernels.Sizes(8, 256, 128)


def configs_of_span(limits: kernels.DeviceLimits, activation: str, family: str) -> list[KernelConfig]:
    configs = [c for c in kernels.legal_configs(SPAN_SIZES, limits, activation, "mxfp4", 32) if c.family == family]
    return configs[:: max(1, len(configs) // 4)]


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("activation", ["fp16", "bf16"])
def test_the_whole_span_of_scales(cupy: Any, limits: kernels.DeviceLimits, activation: str, family: str) -> None:
    """Weights that are subnormal numbers in registers, beside the largest: a token that has only one k sees them."""
    (_, K, N), span = SPAN_SIZES, 24 if activation == "fp16" else 100
    random = np.random.default_rng(span)
    codes = random.integers(0, 16, (K, N), dtype=np.uint8)
    scales = np.tile((140 - np.linspace(0, span, N).astype(int)).astype(np.uint8), (K // 32, 1))
    packed = kernels.pack_fp4(kernels.QuantizedFp4(codes, scales, 1.0), "mxfp4", activation).to_gpu()
    A = np.zeros((8, K))
    A[np.arange(8), random.permutation(K)[:8]] = 1
    expected = cupy.asarray(A) @ kernels.dequantize(packed)
    case = Case(cupy.asarray(to_bits(A, DType(activation))), packed, None, 2.0**-12, expected * 2.0**-12)
    for config in configs_of_span(limits, activation, family):
        found = to_float(cupy, run(cupy, case, config), DType(activation))
        bits = to_bits(cupy.asnumpy(case.expected), DType(activation))
        assert bool((found == to_float(cupy, cupy.asarray(bits), DType(activation))).all()), config


@pytest.mark.parametrize("family", list(FAMILIES))
def test_rows_of_a_wider_matrix(cupy: Any, limits: kernels.DeviceLimits, family: str) -> None:
    """Rows at a distance, NaN between them: what lies outside of A must not be read into the result."""
    sizes = kernels.Sizes(13, 328, 264)
    configs = [c for c in kernels.legal_configs(sizes, limits) if c.family == family]
    case = make_case(cupy, sizes, "fp16", "group", 128, 5, True, 1.0)
    wide = cupy.full((sizes.M + 2, sizes.K + 24), cupy.nan, cupy.float16)
    wide[1:-1, 8 : 8 + sizes.K] = case.A
    for config in configs[:: max(1, len(configs) // 6)]:
        check(cupy, case._replace(A=wide[1:-1, 8 : 8 + sizes.K]), config)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_occupancy_is_that_of_the_driver(cupy: Any, limits: kernels.DeviceLimits, family: str) -> None:
    from cupy_backends.cuda.api import driver

    configs = list(FAMILIES[family].configs())
    for config in configs[:: max(1, len(configs) // 5)]:
        variant = make_variant(config, "fp16", "group", 128)
        if why_not(variant, None, limits) is None:
            compiled = compile_for(variant, limits)
            found = occupancy_of(variant, compiled, limits)
            dynamic = FAMILIES[family].smem_bytes(variant)
            function = runtime.load_function(compiled, runtime.current_device(), dynamic, 0)
            active = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, found.num_threads, dynamic)
            assert found.ctas_per_sm == active, (config, found)


def split_case(cupy: Any, limits: kernels.DeviceLimits, seed: int) -> tuple[Case, KernelConfig]:
    """A GEMM and a kernel of it that needs a workspace."""
    case = make_case(cupy, kernels.Sizes(24, 4096, 512), "fp16", "group", 128, seed, True, 1.0)
    configs = kernels.legal_configs(kernels.Sizes(24, 4096, 512), limits)
    config = next(config for config in configs if config.decomposition is Decomposition.STREAM_K)
    assert kernels.workspace_bytes(24, case.packed, config) > 0
    return case, config


def test_two_streams_at_once(cupy: Any, limits: kernels.DeviceLimits) -> None:
    pairs = [split_case(cupy, limits, seed) for seed in (2, 4)]
    alone = [run(cupy, case, config) for case, config in pairs]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in pairs]
    outputs = [[cupy.empty_like(out) for _ in range(50)] for out in alone]
    cupy.cuda.runtime.deviceSynchronize()
    for i in range(50):
        for (case, config), stream, outs in zip(pairs, streams, outputs, strict=True):
            kernels.w4a16_gemm(case.A, case.packed, case.bias, case.alpha, outs[i], config, stream)
    cupy.cuda.runtime.deviceSynchronize()

    for expected, outs in zip(alone, outputs, strict=True):
        assert all(bool((out == expected).all()) for out in outs)


def test_a_graph(cupy: Any, limits: kernels.DeviceLimits) -> None:
    case, config = split_case(cupy, limits, 6)
    expected = run(cupy, case, config)
    stream, out = cupy.cuda.Stream(non_blocking=True), cupy.empty_like(expected)
    new = cupy.cuda.Stream(non_blocking=True)
    new.begin_capture()
    try:
        with pytest.raises(InvalidOptionError, match="graph is being captured"):
            kernels.w4a16_gemm(case.A, case.packed, out=out, config=config, stream=new)
    finally:
        new.end_capture()
    given = cupy.full(kernels.workspace_bytes(24, case.packed, config), 255, cupy.uint8)
    for workspace in (None, given):
        kernels.w4a16_gemm(case.A, case.packed, case.bias, case.alpha, out, config, stream, workspace)
        stream.begin_capture()
        kernels.w4a16_gemm(case.A, case.packed, case.bias, case.alpha, out, config, stream, workspace)
        graph = stream.end_capture()
        for _ in range(3):
            out.fill(cupy.nan)
            cupy.cuda.runtime.deviceSynchronize()
            graph.launch(stream)
            stream.synchronize()
            assert bool((out == expected).all())


def test_a_given_workspace(cupy: Any, limits: kernels.DeviceLimits) -> None:
    case, config = split_case(cupy, limits, 8)
    check(cupy, case, config, workspace=cupy.full(kernels.workspace_bytes(24, case.packed, config), 255, cupy.uint8))


def test_tensors_of_torch(cupy: Any) -> None:
    torch = pytest.importorskip("torch")
    for activation, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        case = make_case(cupy, kernels.Sizes(9, 512, 256), activation, "group", 128, 3, True, 1.0)
        A, bias = (torch.from_dlpack(x.view(cupy.int16)).view(dtype) for x in (case.A, case.bias))
        out = torch.empty((9, 256), dtype=dtype, device="cuda")
        torch.cuda.synchronize()
        assert kernels.w4a16_gemm(A, case.packed, bias, out=out) is out
        cupy.cuda.runtime.deviceSynchronize()
        expected = run(cupy, case, None)
        assert bool((cupy.from_dlpack(out.view(torch.int16)) == expected.view(cupy.int16)).all())


def test_operands_elsewhere_are_refused(cupy: Any) -> None:
    case = make_case(cupy, kernels.Sizes(9, 512, 256), "fp16", "group", 128, 3, True, 1.0)
    with pytest.raises(InvalidProblemError, match="A must be an array on a GPU"):
        kernels.w4a16_gemm(cupy.asnumpy(case.A), case.packed)
    with pytest.raises(InvalidProblemError, match=r"to_gpu\(\)"):
        kernels.w4a16_gemm(case.A, case.packed.to_cpu())
    with pytest.raises(InvalidProblemError, match="out must not share memory"):
        kernels.w4a16_gemm(case.A, case.packed, out=case.A.ravel()[: 9 * 256].reshape(9, 256))


def test_all_modes_are_in_the_sample() -> None:
    assert {mode for _, mode, *_ in SAMPLE} == {mode.name.lower() for mode in kernels.WeightMode}


@pytest.mark.parametrize("sample", SAMPLE, ids=str)
def test_packing_on_the_gpu_is_that_on_the_cpu(cupy: Any, sample: tuple[Any, ...]) -> None:
    activation, mode, group_size, K, N = sample
    weights = np.random.default_rng(9).standard_normal((K, N)).astype(np.float32)
    host = kernels.pack_w4(weights, group_size, mode, activation=activation)
    packed = kernels.pack_w4(cupy.asarray(weights), group_size, mode, activation=activation)
    assert isinstance(packed.qweight, cupy.ndarray)
    for there, here in ((packed.qweight, host.qweight), (packed.scales, host.scales)):
        assert np.array_equal(cupy.asnumpy(there).view(np.uint16), here.view(np.uint16))
    assert packed.scale_unit == host.scale_unit
    assert np.array_equal(cupy.asnumpy(kernels.dequantize(packed)), kernels.dequantize(host))
    unpack = kernels.unpack_fp4 if host.mode.is_fp4 else kernels.unpack_w4
    for there, here in zip(unpack(packed), unpack(host), strict=True):
        assert (there is None) is (here is None)
        assert here is None or np.array_equal(cupy.asnumpy(there), here)


def test_a_checkpoint_on_the_gpu(cupy: Any) -> None:
    random = np.random.default_rng(10)
    words = random.integers(0, 1 << 32, (256, 32), dtype=np.uint32).view(np.int32)
    zeros = random.integers(0, 1 << 32, (2, 32), dtype=np.uint32).view(np.int32)
    scales = random.uniform(0.01, 0.1, (2, 256)).astype(np.float16)
    host = kernels.from_awq(words, zeros, scales, 128)
    packed = kernels.from_awq(cupy.asarray(words), cupy.asarray(zeros), cupy.asarray(scales), 128)
    assert np.array_equal(cupy.asnumpy(packed.qweight), host.qweight)
    assert np.array_equal(cupy.asnumpy(packed.scales), host.scales)
