"""Every W4A8 kernel on a real GPU, against float64 on the tokens as they were rounded."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from gemm_eval import kernels
from gemm_eval.device import runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidMappingError
from gemm_eval.kernels.families import fp8_families
from gemm_eval.mapping import KernelConfig

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # the vendor's packages warn as they like

WORST_ERROR = {"fp16": 1e-3, "bf16": 5e-3}  # ||C - C64|| / ||C64||, of rounded tokens
WORST_ROUNDING = 0.03  # of standard normal tokens
FAMILY = fp8_families()["w4a8_sm90"]
GUARD_ELEMS, NAN_BITS = 4096, {"fp16": 0x7E01, "bf16": 0x7FC1}
SAMPLE = [
    ("fp16", "group", 128, kernels.Sizes(37, 1032, 328)), ("bf16", "group", 128, kernels.Sizes(131, 520, 184)),
    ("fp16", "group", 64, kernels.Sizes(9, 328, 72)), ("bf16", "group", 32, kernels.Sizes(70, 1096, 136)),
    ("fp16", "column", None, kernels.Sizes(260, 584, 264)), ("bf16", "column", None, kernels.Sizes(1, 8, 8)),
]  # fmt: skip


def bits_of(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "fp16":
        return values.astype(np.float16)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def floats_of(cupy: Any, stored: Any, dtype: str) -> Any:
    if dtype == "fp16":
        return stored.view(cupy.float16).astype(cupy.float64)
    return (stored.view(cupy.uint16).astype(cupy.uint32) << 16).view(cupy.float32).astype(cupy.float64)


class Case:
    """One GEMM with random data, its tokens rounded, and the answer in float64."""

    def __init__(self, cupy: Any, dtype: str, mode: str, group_size: int | None, sizes: kernels.Sizes) -> None:
        random = np.random.default_rng(sum(sizes))
        weights = random.standard_normal((sizes.K, sizes.N)) * random.uniform(0.01, 0.1, sizes.N)
        self.dtype, self.sizes = dtype, sizes
        self.packed: kernels.PackedW4 = kernels.pack_w4(
            weights.astype(np.float32), group_size, mode, activation=dtype
        ).to_gpu()
        values = random.standard_normal((sizes.M, sizes.K)) * random.uniform(0.1, 10, (sizes.M, 1))
        self.A = cupy.asarray(bits_of(values, dtype))
        self.bias = cupy.asarray(bits_of(random.standard_normal(sizes.N), dtype))
        self.tokens = kernels.quantize_tokens(self.A, self.packed)
        self.expected = -1.5 * (kernels.dequantize_tokens(self.tokens) @ kernels.dequantize(self.packed))
        self.expected += floats_of(cupy, self.bias, dtype)

    def run(self, cupy: Any, config: KernelConfig, A: Any) -> Any:
        """Return C from memory full of NaN, whose guards must stay as they were."""
        M, N = self.sizes.M, self.sizes.N
        poison = NAN_BITS[self.dtype]
        memory = cupy.full(2 * GUARD_ELEMS + M * N, poison, cupy.uint16)
        out = memory[GUARD_ELEMS : GUARD_ELEMS + M * N].reshape(M, N)
        out = out.view(cupy.float16) if self.dtype == "fp16" else out
        assert kernels.w4a8_gemm(A, self.packed, self.bias, -1.5, out, config) is out
        cupy.cuda.runtime.deviceSynchronize()
        for guard in (memory[:GUARD_ELEMS], memory[-GUARD_ELEMS:]):
            assert bool((guard == poison).all()), "written outside of out"
        return out

    def check(self, cupy: Any, config: KernelConfig) -> None:
        out = self.run(cupy, config, self.tokens)
        found = floats_of(cupy, out, self.dtype)
        error = float(cupy.linalg.norm(found - self.expected) / cupy.linalg.norm(self.expected))
        assert error <= WORST_ERROR[self.dtype], f"relative error {error:.2e}"  # NaN does not pass
        again = self.run(cupy, config, self.A)  # tokens rounded on the way are the same
        assert bool((out.view(cupy.uint16) == again.view(cupy.uint16)).all()), "another result the second time"


@pytest.mark.parametrize("kind", SAMPLE, ids=str)
def test_kernels_are_right_in_each_mode(cupy: Any, kind: Any) -> None:
    case = Case(cupy, *kind)
    for config in _some(runtime.limits_of_device(0), kind):
        case.check(cupy, config)


@pytest.mark.parametrize("config", list(FAMILY.configs()), ids=str)
def test_every_kernel_is_right_with_k_whole_and_cut(cupy: Any, config: KernelConfig) -> None:
    limits = runtime.limits_of_device(0)
    case = _large(cupy, config.cta_m)
    variant = kernels.make_variant(config, "fp16", "group", 128)
    splits = [split.config for split in kernels.legal_splits(variant, case.sizes, limits)]
    for split in {splits[0], splits[len(splits) // 2], splits[-1]}:
        case.check(cupy, split)


def variants_ahead(test: str, limits: kernels.DeviceLimits, params: Mapping[str, Any]) -> Iterator[kernels.Variant]:
    """Yield kernels that a test runs, for `conftest.py` to compile."""
    if test == "test_every_kernel_is_right_with_k_whole_and_cut":
        yield kernels.make_variant(params["config"], "fp16", "group", 128)
    elif test == "test_kernels_are_right_in_each_mode":
        for config in _some(limits, params["kind"]):
            yield kernels.make_variant(FAMILY.compiled(config), *params["kind"][:3])


def _some(limits: kernels.DeviceLimits, kind: Any) -> list[KernelConfig]:
    configs = list(kernels.legal_configs(kind[3], limits, *kind[:3], is_fp8=True))
    return configs[:: max(1, len(configs) // 12)]


_cases: dict[int, Case] = {}


def _large(cupy: Any, cta_m: int) -> Case:
    rows = 2 * cta_m + 3 if cta_m < 64 else cta_m + 5
    if rows not in _cases:
        _cases[rows] = Case(cupy, "fp16", "group", 128, kernels.Sizes(rows, 1544, 712))
    return _cases[rows]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_tokens_are_rounded_to_the_nearest_e4m3_by_a_scale_of_their_own(cupy: Any, dtype: str) -> None:
    packed = kernels.pack_w4(np.ones((200, 8), np.float32), activation=dtype).to_gpu()
    values = np.random.default_rng(0).standard_normal((5, 200)) * np.array([[1.0], [1e-3], [1e3], [0.0], [1.0]])
    A = cupy.asarray(bits_of(values, dtype))
    exact, found = floats_of(cupy, A, dtype), kernels.dequantize_tokens(kernels.quantize_tokens(A, packed))
    assert not bool(found[3].any())
    largest = abs(exact).max(axis=1, keepdims=True)
    off = abs(found - exact)
    assert bool((off <= cupy.maximum(abs(exact) / 16, largest / 448 * 2.0**-10) * 1.001).all())
    assert float(cupy.linalg.norm(off[0]) / cupy.linalg.norm(exact[0])) < WORST_ROUNDING


def test_long_sums_of_tokens_of_one_sign_are_right(cupy: Any) -> None:
    random, K = np.random.default_rng(2), 16640
    packed = kernels.pack_w4(random.standard_normal((K, 192)).astype(np.float32)).to_gpu()
    tokens = kernels.quantize_tokens(cupy.asarray(abs(random.standard_normal((70, K))).astype(np.float16)), packed)
    expected = kernels.dequantize_tokens(tokens) @ kernels.dequantize(packed)
    found = kernels.w4a8_gemm(tokens, packed).astype(cupy.float64)
    assert float(cupy.linalg.norm(found - expected) / cupy.linalg.norm(expected)) < WORST_ERROR["fp16"]


def test_rows_sorted_by_group_are_multiplied_in_their_order(cupy: Any) -> None:
    random = np.random.default_rng(1)
    K, N = 256, 64
    qweight = random.integers(0, 1 << 31, (K // 8, N), dtype=np.int32)
    scales = random.uniform(0.01, 0.02, (2, N)).astype(np.float16)
    qzeros = np.full((2, N // 8), 0x77777777, np.int32)
    packed = kernels.from_gptq(qweight, qzeros, scales, random.permutation(np.arange(K) % 2).astype(np.int32)).to_gpu()
    assert packed.permutation is not None
    A = cupy.asarray(random.standard_normal((3, K)).astype(np.float16))
    tokens = kernels.quantize_tokens(A, packed)
    in_order = kernels.QuantizedTokens(tokens.data, tokens.shape)
    config = next(kernels.legal_configs(kernels.Sizes(3, K, N), runtime.limits_of_device(0), is_fp8=True))
    found = kernels.w4a8_gemm(A, packed, config=config)
    again = kernels.w4a8_gemm(in_order, packed, config=config)
    assert bool((found == again).all())
    near = kernels.w4a16_gemm(A, packed)
    assert float(cupy.linalg.norm((found - near).astype(cupy.float64)) / cupy.linalg.norm(near.astype(float))) < 0.04


def test_a_kernel_of_other_tokens_is_refused(cupy: Any) -> None:
    case = Case(cupy, *SAMPLE[0])
    config = next(kernels.legal_configs(case.sizes, runtime.limits_of_device(0), is_fp8=True))
    with pytest.raises(InvalidMappingError, match="w4a8_gemm"):
        kernels.w4a16_gemm(case.A, case.packed, config=config)
    with pytest.raises(InvalidMappingError, match="w4a16_gemm"):
        kernels.w4a8_gemm(
            case.A, case.packed, config=next(kernels.legal_configs(case.sizes, runtime.limits_of_device(0)))
        )
    assert DType(case.dtype) is case.packed.activation
