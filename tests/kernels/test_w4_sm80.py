"""The SM80 family of W4A16 kernels without a GPU: its configs and launches, and the index arithmetic of sm80.cu."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gemm_eval.arch.limits import DeviceLimits
from gemm_eval.dtypes import DType
from gemm_eval.kernels.families.base import Operands, Sizes, Variant, WeightMode, ceil_div
from gemm_eval.kernels.families.sm80 import Sm80Family, WarpLayout
from gemm_eval.kernels.registry import SOURCES
from gemm_eval.mapping import Decomposition, KernelConfig
from tests.cases import case

FAMILY = Sm80Family()
CONFIGS = tuple(FAMILY.configs())
H200 = DeviceLimits((9, 0), 132, 232448, 233472, 1024, 65536, 2048, 32)
A100 = DeviceLimits((8, 0), 108, 166912, 167936, 1024, 65536, 2048, 32)
L40S = DeviceLimits((8, 9), 142, 101376, 102400, 1024, 65536, 1536, 24)
SIZES = (Sizes(1, 4096, 4096), Sizes(17, 4104, 1000), Sizes(300, 120, 72), Sizes(4096, 8192, 28672))


def variant(config: KernelConfig, mode: WeightMode = WeightMode.GROUP, group: int = 0, **changes: object) -> Variant:
    return Variant(config._replace(**changes), DType.FP16, mode, group or mode.group_sizes[-1])


def find(m: int, n: int, k: int, warps: int) -> KernelConfig:
    return next(c for c in CONFIGS if (c.cta_m, c.cta_n, c.cta_k, c.num_warps) == (m, n, k, warps))


def refuse(config: KernelConfig, sizes: Sizes | None = None, limits: DeviceLimits = H200, **changes: object) -> str:
    return FAMILY.refusal(variant(config, **changes), sizes, limits) or ""


# the family


def test_configs_are_unique_and_legal() -> None:
    assert len(set(CONFIGS)) == len(CONFIGS)
    assert all(config.decomposition is Decomposition.DATA_PARALLEL and config.split_k == 1 for config in CONFIGS)
    for mode in WeightMode:
        assert all(FAMILY.refusal(variant(config, mode), None, H200) is None for config in CONFIGS)
    for limits in (A100, L40S):
        assert sum(FAMILY.refusal(variant(config), None, limits) is None for config in CONFIGS) >= 12


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


def test_copies_fill_a_stage() -> None:
    for config in CONFIGS:
        with case(config):
            threads, blocks = 32 * config.num_warps, config.cta_k // 64
            block_copies = blocks * 128
            run = max(1, block_copies // threads)
            total = config.cta_n * config.cta_k // 32
            runs = total // threads // run
            assert runs * run * threads == total
            source, target = set(), set()
            for i in range(runs):
                for j in range(run):
                    for tid in range(threads):
                        copy = i * run * threads + tid
                        column_block, byte = copy // block_copies, copy % block_copies * 16 + j * threads * 16
                        to = tid * 16 + (i * run + j) * threads * 16
                        assert to == column_block * blocks * 2048 + byte
                        source.add((column_block, byte))
                        target.add(to)
            assert len(source) == len(target) == total
            # the weights of the warps' lanes
            layout = WarpLayout.of(config)
            groups, seen = layout.columns // 16, set()
            for warp_n in range(config.cta_n // layout.columns):
                for block in range(blocks):
                    for i in range(groups):
                        first = warp_n * groups
                        at = first // 4 * (blocks * 2048) + first % 4 * 512 + block * 2048 + i * 512
                        column_group = first + i
                        assert at == (column_group // 4 * blocks + block) * 2048 + column_group % 4 * 512
                        seen.add(at)
            assert seen == set(range(0, config.cta_n * config.cta_k // 2, 512))


def test_epilogue_transposes_every_sum_once() -> None:
    for config in CONFIGS:
        with case(config):
            layout = WarpLayout.of(config)
            warps_m, token_groups, stride = config.cta_m // layout.tokens, layout.tokens // 8, config.cta_n + 4
            ring = FAMILY.smem_bytes(variant(config, WeightMode.COLUMN))
            groups = next(g for g in (8, 4, 2, 1) if g <= token_groups and warps_m * g * 8 * stride * 4 <= ring)
            assert token_groups % groups == 0
            written, lanes = set(), np.arange(32)
            assert len(set((lanes % 4 * 2 * stride + lanes // 4) % 32)) == 32  # 32 lanes, 32 banks
            for shift in range(0, 16, 8):  # eight lanes read 16 bytes each: 32 banks
                tid = np.arange(shift, shift + 8)
                assert len(set((tid * 8 + tid // 4 % 2 * 4) // 4 % 8)) == 8
            rows = warps_m * groups * 8
            for number in range(token_groups // groups):
                staged = {}
                for warp_m in range(warps_m):
                    for t in range(groups):
                        for token in range(8):
                            row = warp_m * groups * 8 + t * 8 + token
                            staged[row] = warp_m * layout.tokens + (number * groups + t) * 8 + token
                assert sorted(staged) == list(range(rows))
                for row, token in staged.items():
                    assert token == row // (groups * 8) * layout.tokens + number * (groups * 8) + row % (groups * 8)
                    written.add(token)
            assert written == set(range(config.cta_m))
