"""The W4A8 kernels without a GPU: their configs and launches, the order of e4m3 tokens, their table, and the choice."""

import csv
from typing import Any

import numpy as np
import pytest
import yaml

from gemm_eval import (
    DType,
    GEMMEvaluator,
    GemmProblem,
    GEMMResult,
    InvalidMappingError,
    UnsupportedError,
    kernels,
    load_arch,
    select_config,
)
from gemm_eval.arch import GpuSpec
from gemm_eval.arch.gpu import DeviceLimits
from gemm_eval.arch.paths import data_root
from gemm_eval.device import compiler_version, nvdisasm_version
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels.families import Operands, Variant
from gemm_eval.kernels.families.sm90_fp8 import Sm90Fp8Family
from gemm_eval.mapping import Decomposition, KernelConfig
from tools.kernel_table import COLUMNS, describe_kernel, sources_digest, table_variants

FAMILY = Sm90Fp8Family()
CONFIGS = tuple(FAMILY.configs())
H200 = DeviceLimits((9, 0), 132, 232448, 233472, 1024, 65536, 2048, 32)
TABLE = data_root() / "kernels" / "w4a8" / "sm_90a-fp8.csv"
REGISTERS_OF_SUMS = 192  # of a thread, of the 232 (152 with three warpgroups) that those that compute have
MOST_SPILL_BYTES = 96  # of the largest tiles of 256 columns; with NVRTC 13.0


def e4m3_value(byte: int) -> float:
    """OFP8: a sign, four bits of exponent with bias 7, three of mantissa; exponent 0 is subnormal."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    magnitude = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if byte & 0x80 else magnitude


def variant(
    config: KernelConfig, mode: kernels.WeightMode = kernels.WeightMode.GROUP, group_size: int = 128
) -> Variant:
    return Variant(config, DType.FP16, mode, group_size)


# the order of tokens


def fragment_of(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Integers of a lane's operands of two m64nNk32, [step, register, byte], as the kernel has them: u, 15 - u."""
    nibbles = np.array(
        [[int(word) >> (8 * byte + 4 * h) & 15 for byte in range(4)] for word in words for h in range(2)]
    )
    turned: np.ndarray[Any, Any] = nibbles.reshape(2, 4, 4) ^ np.array([0, 15, 0, 15])
    return turned  # words 2 s and 2 s + 1, each columns g and g + 8


def test_bytes_of_tokens_meet_the_weights_of_their_k() -> None:
    """PTX ISA, wgmma fragments of A for .e4m3: registers 0, 1 are rows g and g + 8 of k 4 t .. 4 t + 3, 2, 3 k + 16."""
    random = np.random.default_rng(0)
    integers = random.integers(0, 16, (128, 64))
    packed = kernels.pack_w4(integers.astype(np.uint8), 128, scales=np.ones((1, 64), np.float32))
    tokens = random.integers(-8, 8, 128)
    places = np.array([2 * (byte // 4) + byte % 4 // 2 + 8 * (byte % 2) for byte in range(16)])
    stored = (tokens.reshape(8, 16) * ([1] * 8 + [-1] * 8))[:, places].reshape(2, 2, 32)  # 64 k, wgmma of 32 k, byte
    sums = np.zeros(64, int)
    for block in range(2):
        for warp in range(4):
            for lane in range(32):
                of_lane = fragment_of(packed.qweight[0, block, warp, lane])
                for step in range(2):
                    for register in range(4):
                        column = 16 * warp + lane // 4 + 8 * (register % 2)
                        first = 4 * (lane % 4) + 16 * (register // 2)
                        sums[column] += of_lane[step, register] @ stored[block, step, first : first + 4]
    sums -= 8 * stored[:, :, ::2].sum() + 7 * stored[:, :, 1::2].sum()  # what quantize.cu has as a correction
    np.testing.assert_array_equal(sums, tokens @ (kernels.unpack_w4(packed).integers.astype(int) - 8))


def test_tokens_come_back_in_the_order_of_k_with_their_scales() -> None:
    M, K = 3, 136
    data = np.zeros(kernels.quantized_bytes(M, K), np.uint8)
    rows = np.arange(M * kernels.padded_k(K)).astype(np.uint8) % 126  # no NaN
    rows[1::2] |= 0x80
    scales = np.array([0.5, 1.0, 3.0], np.float32)
    at = rows.size + M * 128  # behind corrections of up to 4,096 k
    data[: rows.size], data[at : at + 12] = rows, scales.view(np.uint8)
    found = kernels.dequantize_tokens(kernels.QuantizedTokens(data, (M, K)))
    for m, k in ((0, 0), (0, 8), (1, 1), (2, 9), (2, 135)):
        byte = 4 * (k % 8 // 2) + 2 * (k % 2) + k % 16 // 8
        stored = rows[m * kernels.padded_k(K) + k // 16 * 16 + byte]
        assert found[m, k] == scales[m] * e4m3_value(int(stored)) * (-1 if k % 16 >= 8 else 1)


# configs and launches


def test_sums_fit_the_registers_and_stages_the_shared_memory() -> None:
    assert len(CONFIGS) == len(set(CONFIGS))
    for config in CONFIGS:
        macros = FAMILY.macros(variant(config))
        part = config.cta_m // macros["TOKEN_PARTS"]
        assert part % 8 == 0
        most = REGISTERS_OF_SUMS if macros["CONSUMERS"] == 2 else 132
        assert config.cta_m // 2 * macros["MB"] + part // 2 <= most
        assert macros["MB"] * 64 * macros["CONSUMERS"] == config.cta_n
        assert macros["STAGES"] >= 3
        for kind in ((kernels.WeightMode.GROUP, 32), (kernels.WeightMode.COLUMN, 0)):
            assert FAMILY.smem_bytes(variant(config, *kind)) <= H200.smem_per_cta_bytes


def test_a_launch_gets_tokens_as_words_and_their_scales_behind() -> None:
    config = next(config for config in CONFIGS if (config.cta_m, config.cta_n, config.cluster_n) == (128, 256, 2))
    sizes, made = kernels.Sizes(50, 1000, 520), []

    def tensor_map(address: int, dtype: DType, shape: Any, stride: int, box: Any) -> str:
        made.append((address, dtype, shape, stride, box))
        return "map"

    operands = Operands(1 << 40, 1024, 2, 3, 4, 1 << 41, 5, 6, 0.5, 9, 16, 8)
    launch = FAMILY.launch(variant(config), sizes, 132, 1)
    given = FAMILY.arguments(variant(config), sizes, launch, operands, tensor_map)
    assert (1 << 40, DType.FP16, (50, 512), 512, (50, 64)) in made
    corrections = (1 << 40) + 50 * 1024
    assert (corrections, DType.FP16, (50, 64), 64, (50, 64)) in made
    assert given[:3] == ("map", "map", "map")
    assert int(given[3]) == corrections + 50 * 128
    assert [int(value) for value in given[4:7]] == [2, 3, 4]


@pytest.mark.parametrize("mode", ["group_zero", "mxfp4", "nvfp4"])
def test_weights_that_are_no_integers_of_four_bits_are_refused(mode: str) -> None:
    assert all(mode in str(entry.refusal) for entry in kernels.list_kernels(H200, "fp16", mode, is_fp8=True))


def test_kernels_of_other_tokens_are_refused() -> None:
    sizes, types = kernels.Sizes(64, 4096, 4096), (DType.FP16, kernels.WeightMode.GROUP, 128)
    for is_fp8, runs in ((True, "w4a16_gemm"), (False, "w4a8_gemm")):
        other = next(kernels.legal_configs(sizes, H200, is_fp8=not is_fp8))
        with pytest.raises(InvalidMappingError, match=f"has kernels that {runs} runs"):
            kernels.make_plan(sizes, *types, other, H200, is_fp8=is_fp8)


# the table


def read_table() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_table_is_of_the_kernels_of_the_registry_and_of_these_sources() -> None:
    rows, variants = read_table(), list(table_variants("sm_90a", DType.FP8))
    meta = yaml.safe_load((TABLE.parent / "meta.yaml").read_text(encoding="utf-8"))["tables"][TABLE.stem]
    assert (meta["cuda_sources_sha256"], meta["num_rows"]) == (sources_digest("sm_90a", DType.FP8), len(rows))
    assert list(rows[0]) == list(COLUMNS)
    assert len(rows) == len(variants) == 4 * len(CONFIGS)
    for row, known in zip(rows, variants, strict=True):
        config = known.config
        assert [row[name] for name in COLUMNS[1:4]] == [str(size) for size in config[1:4]]
        assert (row["mode"], row["group_size"]) == (known.mode.name.lower(), str(known.group_size))
        assert int(row["smem_bytes"]) == FAMILY.smem_bytes(known)
        assert int(row["tensor"]) == 8 * FAMILY.macros(known)["TOKEN_PARTS"]  # m64nNk32, in each of four warps
        assert float(row["single"]) >= config.cta_m  # a sum of each token and column is scaled once for 128 k
        assert int(row["spill_bytes"]) <= MOST_SPILL_BYTES


def test_a_fresh_kernel_is_that_of_the_table() -> None:
    try:
        compiler_version()
        nvdisasm_version()
    except GemmEvalError as error:
        pytest.skip(str(error))
    at = 4 * 17 + 3
    fresh = describe_kernel(list(table_variants("sm_90a", DType.FP8))[at], "sm_90a")
    assert {name: str(value) for name, value in fresh.items()} == read_table()[at]


# the choice


@pytest.mark.parametrize("M", [1, 100, 3500])
def test_the_model_ranks_what_the_registry_has(M: int) -> None:
    spec = load_arch("h200-sxm", GpuSpec)
    sizes, types = kernels.Sizes(M, 4104, 4096), (DType.BF16, kernels.WeightMode.GROUP, 64)
    problem = kernels.problem_of(sizes, *types, is_fp8=True)
    assert (problem.input_dtype, problem.output_dtype) == (DType.FP8, DType.BF16)
    ranked = select_config(problem, spec, 1 << 20)
    limits = kernels.limits_of_spec(spec)
    assert set(ranked) == set(kernels.legal_configs(sizes, limits, *types, is_fp8=True))
    assert kernels.choose(sizes, *types, spec, limits, is_fp8=True) == ranked[0]


def test_tokens_of_eight_bits_are_half_the_bytes_and_twice_the_rate() -> None:
    evaluator = GEMMEvaluator("h200-sxm")

    def both(M: int) -> list[GEMMResult]:
        return [evaluator.evaluate(1, M, 4096, 8192, dtype) for dtype in ("w4a8_fp8", "w4a16")]

    narrow, wide = both(64)
    assert narrow.traffic["a_bytes"] == wide.traffic["a_bytes"] / 2 == 64 * 4096
    assert isinstance(narrow.mapping, KernelConfig)
    assert narrow.mapping.family == "w4a8_sm90"
    assert "coefficients of gemm-eval's w4a8_sm90 kernels" in narrow.explain()
    narrow, wide = both(4096)
    assert 1.3 < wide.latency_us / narrow.latency_us < 2.0


@pytest.mark.parametrize("arch", ["a100-sxm-80gb", "l40s", "b200"])
def test_other_gpus_have_no_such_kernels(arch: str) -> None:
    problem = GemmProblem(1, 64, 4096, 4096, DType.FP8, DType.INT4, DType.FP16, group_size=128)
    with pytest.raises(UnsupportedError):
        select_config(problem, arch, library="gemm-eval")


def test_each_way_to_cut_k_is_there() -> None:
    found = {config.decomposition for config in kernels.legal_configs(kernels.Sizes(64, 4096, 4096), H200, is_fp8=True)}
    assert found == set(Decomposition)
    config = next(iter(CONFIGS))
    assert kernels.make_variant(config, "fp16", "group", None) == variant(config)
