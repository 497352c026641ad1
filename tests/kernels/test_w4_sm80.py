"""Families of W4A16 kernels that run on every GPU from sm_80 on, without one: their configs, launches and refusals."""

import re

import numpy as np
import pytest

from gemm_eval.arch.gpu import DeviceLimits
from gemm_eval.dtypes import DType
from gemm_eval.kernels.families.base import Family, Operands, Sizes, Variant, WeightMode, ceil_div
from gemm_eval.kernels.families.gemv import GemvFamily, GemvMmaFamily, StreamingFamily
from gemm_eval.kernels.families.sm80 import Sm80Family, WarpLayout
from gemm_eval.kernels.registry import SOURCES
from gemm_eval.mapping import Decomposition, KernelConfig
from tests.cases import case

# ---- few tokens ------------------------------------------------------------------------------------------------------


H200 = DeviceLimits((9, 0), 132, 232448, 233472, 1024, 65536, 2048, 32)
FAMILIES: tuple[StreamingFamily, ...] = (GemvFamily(), GemvMmaFamily())
GEMV_CONFIGS = [(family, config) for family in FAMILIES for config in family.configs()]
MODES = [(0, 0), (1, 32), (1, 64), (1, 128), (2, 32), (2, 64), (2, 128)]


def gemv_variant(config: KernelConfig, mode: int = 1, group: int = 128, dtype: DType = DType.FP16) -> Variant:
    return Variant(config, dtype, WeightMode(mode), group)


def split(config: KernelConfig, parts: int) -> KernelConfig:
    return config._replace(split_k=parts, decomposition=Decomposition.SPLIT_K if parts > 1 else config.decomposition)


# what a family says


def test_configs() -> None:
    for family in FAMILIES:
        configs = list(family.configs())
        assert len(set(configs)) == len(configs) >= 12
        for config in configs:
            assert config.family == family.name
            teams, rest = divmod(config.cta_k, 64)
            assert rest == config.num_warps % teams == 0
            assert teams % 2 == 0  # a group of two blocks is never cut between steps of a team
            assert teams < 16 or teams == config.num_warps  # named barriers
            assert config.cta_n // 2 <= 32 * config.num_warps  # a thread's columns in the epilogue are always the same
            assert 512 * config.num_stages * config.cta_n // 16 * teams >= 8192
            assert config.split_k == 1
    assert {c.cta_m for c in GemvFamily().configs()} == {1, 2, 4, 8}
    assert {c.cta_m for c in GemvMmaFamily().configs()} == {8, 16, 24, 32}


def test_memory_and_grid() -> None:
    for family, config in GEMV_CONFIGS:
        with case(config):
            for mode, group in MODES:
                v = gemv_variant(config, mode, group)
                assert family.refusal(v, None, H200) in (None, "too few registers")
                smem, per_team = family.smem_bytes(v), config.cta_m * 128 * config.num_stages
                assert config.cta_k // 64 * per_team <= smem <= 227 << 10
                assert smem % 16 == 0
                assert family.min_ctas(v) * family.num_threads(v) <= 2048
            for sizes in (Sizes(1, 8192, 28672), Sizes(5, 136, 8), Sizes(17, 4096, 4104)):
                for parts in (1, 3):
                    launch = family.launch(gemv_variant(split(config, parts)), sizes, 132, 1)
                    x, y, z = launch.grid
                    assert (x - 1) * config.cta_n < sizes.N <= x * config.cta_n
                    assert (z - 1) * config.cta_m < sizes.M <= z * config.cta_m
                    assert y == parts
                    assert launch.num_threads == 32 * config.num_warps
                    assert launch.workspace_bytes == (x * y * z * config.cta_m * config.cta_n * 4 if parts > 1 else 0)
                    assert launch.num_counters == (x * z if parts > 1 else 0)


def test_splits() -> None:
    for family, config in GEMV_CONFIGS:
        with case(config):
            for sizes in (Sizes(1, 8192, 28672), Sizes(1, 4096, 4096), Sizes(8, 28672, 8192), Sizes(1, 64, 64)):
                ways = list(family.splits(gemv_variant(config), sizes, H200))
                assert ways[0] == (Decomposition.DATA_PARALLEL, 1)
                assert len(set(ways)) == len(ways) <= 6
                for how, parts in ways[1:]:
                    assert how is Decomposition.SPLIT_K
                    assert 1 < parts <= sizes.K // config.cta_k  # work for every team
                    assert family.refusal(gemv_variant(split(config, parts)), sizes, H200) is None


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(("K", "parts"), [(328, 3), (1096, 1), (520, 2), (776, 5)])
def test_arguments(family: StreamingFamily, K: int, parts: int) -> None:
    """The last two say how many blocks of 64 each part takes, and how many parts take one more: all blocks once."""
    v, sizes = gemv_variant(split(next(family.configs()), parts)), Sizes(2, K, 72)
    operands = Operands(11, 336, 12, 13, 14, 15, 16, 17, 0.5, 2, 6, 3)
    arguments = family.arguments(v, sizes, family.launch(v, sizes, 132, 1), operands, lambda *_: None)
    *others, blocks, longer = [float(x) for x in arguments]
    assert others == [11, 12, 13, 14, 15, 16, 17, 0.5, 2, 72, K, 336, 2, 6, 3]
    assert {type(x) for x in arguments} == {np.uint64, np.float32, np.int32}
    assert parts * blocks + longer == ceil_div(K, 64)
    assert 0 <= longer < parts


def test_gemv_refusals() -> None:
    family: Family = GemvFamily()
    config = next(family.configs())
    v, sizes = gemv_variant(config), Sizes(1, 4096, 4096)
    assert family.refusal(v, sizes, H200) is None
    assert "tokens" in str(family.refusal(v, Sizes(65, 4096, 4096), H200))
    assert "multiples of 8" in str(family.refusal(v, Sizes(1, 4100, 4096), H200))
    assert "blocks" in str(family.refusal(gemv_variant(split(config, 3)), Sizes(1, 128, 4096), H200))
    assert "shared memory" in str(family.refusal(v, sizes, H200._replace(smem_per_cta_bytes=1024)))
    assert "threads" in str(family.refusal(v, sizes, H200._replace(max_threads_per_sm=128)))


# ---- sm80 ------------------------------------------------------------------------------------------------------------


FAMILY = Sm80Family()
CONFIGS = tuple(FAMILY.configs())
L40S = DeviceLimits((8, 9), 142, 101376, 102400, 1024, 65536, 1536, 24)
SIZES = (Sizes(1, 4096, 4096), Sizes(17, 4104, 1000), Sizes(300, 120, 72), Sizes(4096, 8192, 28672))


def variant(config: KernelConfig, mode: WeightMode = WeightMode.GROUP, group: int = 0, **changes: object) -> Variant:
    return Variant(config._replace(**changes), DType.FP16, mode, group or mode.group_sizes[-1])


def find(m: int, n: int, k: int, warps: int) -> KernelConfig:
    return next(c for c in CONFIGS if (c.cta_m, c.cta_n, c.cta_k, c.num_warps) == (m, n, k, warps))


def refuse(config: KernelConfig, sizes: Sizes | None = None, limits: DeviceLimits = H200, **changes: object) -> str:
    return FAMILY.refusal(variant(config, **changes), sizes, limits) or ""


# the family


def test_warps_cover_the_tile() -> None:
    for config in CONFIGS:
        with case(config):
            layout = WarpLayout.of(config)
            parts = (config.cta_m // layout.tokens) * (config.cta_n // layout.columns)
            assert parts * layout.slices == config.num_warps
            assert layout.tokens * layout.columns // 32 <= 128  # sums in registers
            assert config.cta_k // 64 % layout.slices == 0
            macros = FAMILY.macros(variant(config))
            assert macros["WARP_M"] == layout.tokens
            assert macros["MIN_CTAS"] >= 1


def test_rule_of_the_warps() -> None:
    assert WarpLayout.of(find(16, 128, 128, 4)) == (16, 64, 2)
    assert WarpLayout.of(find(16, 128, 128, 8)) == (16, 32, 2)
    assert WarpLayout.of(find(64, 64, 64, 4)) == (32, 32, 1)
    assert WarpLayout.of(find(128, 128, 64, 4)) == (64, 64, 1)
    assert WarpLayout.of(find(128, 128, 64, 8)) == (32, 64, 1)


def test_refusals() -> None:
    large, small = find(256, 128, 64, 8), find(16, 128, 128, 4)
    assert "shared memory" in refuse(large, limits=L40S)
    assert "multiples of 8" in refuse(small, Sizes(1, 4096, 4100))
    assert "multiples of 8" in refuse(small, Sizes(1, 4100, 4096))
    assert "too few" in refuse(small, Sizes(1, 256, 4096), split_k=3, decomposition=Decomposition.SPLIT_K)
    assert "31 bits" in refuse(small, Sizes(2**24, 2**20, 2**20))
    assert not refuse(small, Sizes(1, 256, 4096), split_k=2, decomposition=Decomposition.SPLIT_K)
    assert "threads" in refuse(small, limits=H200._replace(registers_per_sm=4096))


def test_few_tiles_are_cut_in_every_way() -> None:
    for limits in (H200, L40S):
        assert {d for d, _ in FAMILY.splits(variant(find(16, 128, 128, 4)), SIZES[0], limits)} == set(Decomposition)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_launches(sizes: Sizes) -> None:
    units = ceil_div(sizes.K, 128)
    for config in CONFIGS:
        tiles = ceil_div(sizes.M, config.cta_m) * ceil_div(sizes.N, config.cta_n)
        tile_bytes = 4 * config.cta_m * config.cta_n
        whole = FAMILY.launch(variant(config), sizes, 132, 2)
        assert (whole.grid, whole.workspace_bytes, whole.num_counters) == ((tiles, 1, 1), 0, 0)
        assert whole.num_threads == 32 * config.num_warps
        if units > 1:
            parts = variant(config, decomposition=Decomposition.SPLIT_K, split_k=2)
            cut = FAMILY.launch(parts, sizes, 132, 2)
            assert (cut.grid[0], cut.workspace_bytes, cut.num_counters) == (2 * tiles, 2 * tiles * tile_bytes, tiles)
        even = FAMILY.launch(variant(config, decomposition=Decomposition.STREAM_K), sizes, 132, 2)
        assert even.grid[0] == min(264, tiles * units)
        assert even.workspace_bytes == (2 * even.grid[0] * tile_bytes if tiles % even.grid[0] else 0)


def test_arguments_follow_the_kernel() -> None:
    source = (SOURCES / FAMILY.source).read_text()
    signature = re.search(rf"{FAMILY.entry}\((.*?)\) \{{", source, re.DOTALL)
    assert signature is not None
    cut = variant(find(16, 128, 128, 4), decomposition=Decomposition.SPLIT_K, split_k=3, raster_swizzle=4)
    sizes = Sizes(5, 1000, 520)
    launch = FAMILY.launch(cut, sizes, 132, 2)
    operands = Operands(1 << 40, 1008, 2, 3, 0, 5, 6, 7, 0.5, 9, 16, 8)
    arguments = FAMILY.arguments(cut, sizes, launch, operands, lambda *_: None)
    of_one_gemm = signature.group(1).split("#if GROUPED")[0]
    types = [parameter.split() for parameter in of_one_gemm.split(",")]
    assert len(types) == len(arguments)
    for words, argument in zip(types, arguments, strict=True):
        kind = next(w.rstrip("*") for w in words if w != "const")
        pointer = any("*" in word for word in words)
        expected = np.uint64 if pointer else {"int": np.int32, "u32": np.uint32, "float": np.float32}[kind]
        assert type(argument) is expected, words
    by_name = {words[-1]: argument for words, argument in zip(types, arguments, strict=True)}
    numbers = {"M": 5, "N": 520, "K": 1000, "units_of_tile": 8, "split": 3, "lda": 1008}
    numbers |= {"raster_along_n": 0, "raster_swizzle": 4}
    assert numbers.items() <= by_name.items()


# index arithmetic, as sm80.cu has it
