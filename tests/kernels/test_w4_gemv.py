"""Kernels for few tokens: their index arithmetic lane by lane in numpy, what they ask for, and that they compile."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from gemm_eval.arch.limits import DeviceLimits
from gemm_eval.dtypes import DType
from gemm_eval.kernels.families.base import Family, Operands, Sizes, Variant, WeightMode, ceil_div
from gemm_eval.kernels.families.gemv import GemvFamily, GemvMmaFamily, StreamingFamily
from gemm_eval.mapping import Decomposition, KernelConfig
from tests.cases import case

H200 = DeviceLimits((9, 0), 132, 227 << 10, 228 << 10, 1024, 65536, 2048, 32)
FAMILIES: tuple[StreamingFamily, ...] = (GemvFamily(), GemvMmaFamily())
CONFIGS = [(family, config) for family in FAMILIES for config in family.configs()]
MODES = [(0, 0), (1, 32), (1, 64), (1, 128), (2, 32), (2, 64), (2, 128)]
LANES = np.arange(32)


def variant(config: KernelConfig, mode: int = 1, group: int = 128, dtype: DType = DType.FP16) -> Variant:
    return Variant(config, dtype, WeightMode(mode), group)


def split(config: KernelConfig, parts: int) -> KernelConfig:
    return config._replace(split_k=parts, decomposition=Decomposition.SPLIT_K if parts > 1 else config.decomposition)


# packed weights


class Packed(NamedTuple):
    words: Any  # uint8 of qweight
    scales: Any  # [NB, GB, 64] of pairs (scale, zero point); mode 0: one group
    dense: Any  # [64 NB, 128 * ...]: s * (u - z)


def pack(rng: np.random.Generator, sizes: Sizes, mode: int, group: int) -> Packed:
    """KERNELS.md, weight by weight."""
    NB, KB = ceil_div(sizes.N, 64), 2 * ceil_div(sizes.K, 128)
    u = rng.integers(0, 16, (64 * NB, 64 * KB))
    u[sizes.N :], u[:, sizes.K :] = 8, 8
    k_of_group = group or 64 * KB
    GB = 64 * KB // k_of_group
    scale = rng.normal(size=(64 * NB, GB))
    zero = rng.integers(0, 16, (64 * NB, GB)) if mode == 2 else np.full((64 * NB, GB), 8)
    n, k = (x.ravel() for x in np.meshgrid(np.arange(64 * NB), np.arange(64 * KB), indexing="ij"))
    strip, h, g = n % 64 // 16, n % 16 // 8, n % 8
    j, above, t, odd = k % 64 // 16, k % 16 // 8, k % 8 // 2, k % 2
    words = np.zeros((NB, KB, 4, 32, 4), np.uint32)
    nibble = (u.ravel() << (16 * odd + 8 * above + 4 * h)).astype(np.uint32)
    np.bitwise_or.at(words, (n // 64, k // 64, strip, 4 * g + t, j), nibble)
    place = np.arange(64 * NB) % 64
    place = place // 16 * 16 + 2 * (place % 8) + place % 16 // 8
    scales = np.zeros((NB, GB, 64, 2))
    for column in range(64 * NB):
        scales[column // 64, :, place[column], 0] = scale[column]
        scales[column // 64, :, place[column], 1] = zero[column]
    wide = np.repeat(scale, k_of_group, axis=1) * (u - np.repeat(zero, k_of_group, axis=1))
    return Packed(words.view(np.uint8).ravel(), scales, wide)


# one lane after the other


class Run(NamedTuple):
    c: Any
    reads: Any  # of each 16 bytes of weights, in the first tile of tokens


def emulate(family: StreamingFamily, v: Variant, sizes: Sizes, a: Any, packed: Packed) -> Run:
    """What the kernels do, with their addresses; the arithmetic is in float64."""
    config, launch = v.config, family.launch(v, sizes, 132, 1)
    tokens, stages, teams = config.cta_m, config.num_stages, config.cta_k // 64
    parts = config.num_warps // teams
    columns = config.cta_n // parts  # of a warp
    NB, KB, GB = ceil_div(sizes.N, 64), 2 * ceil_div(sizes.K, 128), packed.scales.shape[1]
    operands = Operands(0, sizes.K, 0, 0, 0, 0, 0, 0, 1.0, NB, KB, GB)
    split_blocks, longer = (
        int(x) for x in family.arguments(v, sizes, launch, operands, lambda *_: None)[-2:]
    )  # last of the kernel's arguments
    groups = max(1, 64 // v.group_size) if v.group_size else 1
    strips = columns // 16
    reads = np.zeros(packed.words.size // 16, np.int64)
    c = np.full((sizes.M, sizes.N), np.nan)
    for x, z in np.ndindex(launch.grid[0], launch.grid[2]):
        partial = []
        for y in range(launch.grid[1]):
            all_sums = np.zeros((tokens, config.cta_n))
            for team, part in np.ndindex(teams, parts):
                sums = all_sums[:, part * columns : (part + 1) * columns]
                begin = y * split_blocks + min(y, longer) + team
                count = split_blocks + (y < longer) - team
                for step in range(ceil_div(count, teams) if count > 0 else 0):
                    block = begin + step * teams
                    rows = min(sizes.M - z * tokens, tokens)
                    ring = stage_tokens(a[z * tokens : z * tokens + rows], block, tokens, step % stages, parts)
                    first = x * config.cta_n + part * columns
                    nb, in_block = min(first // 64, NB - 1), first % 64
                    has_high = nb + 1 < NB
                    for i in range(strips):
                        offset = (nb * KB + block) * 2048 + in_block * 32 + LANES * 16 + i % 4 * 512
                        offset += KB * 2048 if i >= 4 and has_high else 0
                        if z == 0 and first // 64 < NB and (i < 4 or has_high):
                            np.add.at(reads, offset // 16, 1)
                        words = packed.words[offset[:, None] + np.arange(16)].view(np.uint32)  # [lane, j]
                        for j in range(4):
                            group = block * 64 // v.group_size + j * groups // 4 if v.group_size else 0
                            pair = 2 * ((in_block + 16 * i) // 2 % 32 + LANES // 4)
                            nb_of_strip = nb + (i >= 4 and has_high)
                            for h in range(2):
                                scale, zero = packed.scales[nb_of_strip, group, pair + h].T
                                for above, odd in np.ndindex(2, 2):
                                    q = words[:, j] >> np.uint32(16 * odd + 8 * above + 4 * h) & np.uint32(15)
                                    weight = scale * (q.astype(np.int64) - zero)
                                    # chunk 2 j + above of each token, element 2 (lane % 4) + odd
                                    b = read_tokens(ring, tokens, 2 * j + above, 2 * (LANES % 4) + odd)
                                    np.add.at(sums.T, 16 * i + 8 * h + LANES // 4, weight[:, None] * b.T)
            partial.append(all_sums)
        total = np.sum(partial, axis=0)
        rows, columns_before = min(sizes.M - z * tokens, tokens), x * config.cta_n
        wide = min(sizes.N - columns_before, config.cta_n)
        if wide > 0:
            c[z * tokens : z * tokens + rows, columns_before : columns_before + wide] = total[:rows, :wide]
    return Run(c, reads)


def stage_tokens(a: Any, block: int, tokens: int, stage: int, parts: int) -> Any:
    """The ring's stage after the copies: rows of 128 bytes, 16-byte chunks at chunk ^ (row % 8)."""
    ring = np.full(tokens * 64, np.nan)
    threads = np.arange(32 * parts)
    for i in range(ceil_div(tokens, 4 * parts)):
        row, chunk = 4 * parts * i + threads // 8, threads % 8
        to = (threads // 8 * 128 + (((chunk ^ threads // 8) & 7) << 4)) ^ (64 if parts == 1 and i % 2 else 0)
        to = (to + i * 512 * parts) // 2
        for thread in threads:
            if row[thread] >= tokens:
                continue
            k = block * 64 + chunk[thread] * 8
            inside = row[thread] < len(a) and k < a.shape[1]
            ring[to[thread] : to[thread] + 8] = a[row[thread], k : k + 8] if inside else 0.0
    assert not np.isnan(ring).any()
    return ring


def read_tokens(ring: Any, tokens: int, chunk: int, element: Any) -> Any:
    """Element of a chunk of all tokens, as the matrices that are loaded give it: [tokens, lanes]."""
    rows = np.arange(tokens)
    return ring[(rows * 64 + (chunk ^ rows % 8) * 8)[:, None] + element]


EMULATED = [
    # family, (cta_m, cta_n, warps, stages), parts of K, sizes, mode, group
    (GemvMmaFamily(), (8, 64, 8, 3), 1, Sizes(1, 1096, 72), 1, 128),
    (GemvMmaFamily(), (8, 32, 4, 6), 3, Sizes(8, 520, 104), 1, 64),
    (GemvMmaFamily(), (16, 128, 4, 3), 2, Sizes(11, 520, 136), 2, 32),
    (GemvMmaFamily(), (24, 32, 8, 4), 5, Sizes(29, 328, 24), 0, 0),
    (GemvMmaFamily(), (8, 128, 8, 4), 2, Sizes(3, 1096, 200), 1, 128),
    (GemvMmaFamily(), (24, 256, 8, 6), 2, Sizes(21, 520, 328), 2, 64),
    (GemvMmaFamily(), (8, 128, 8, 2), 1, Sizes(3, 136, 200), 1, 32),
    (GemvFamily(), (1, 64, 4, 2), 4, Sizes(1, 648, 136), 1, 128),
    (GemvFamily(), (2, 32, 8, 2), 1, Sizes(3, 776, 40), 2, 128),
    (GemvFamily(), (4, 16, 8, 4), 2, Sizes(5, 264, 72), 0, 0),
    (GemvFamily(), (8, 32, 8, 2), 2, Sizes(7, 1032, 32), 2, 64),
    (GemvFamily(), (1, 128, 4, 1), 2, Sizes(1, 512, 72), 1, 32),
]


@pytest.mark.parametrize(("family", "shape", "parts", "sizes", "mode", "group"), EMULATED)
def test_every_weight_once_and_the_right_product(
    family: StreamingFamily, shape: tuple[int, ...], parts: int, sizes: Sizes, mode: int, group: int
) -> None:
    config = next(c for c in family.configs() if (c.cta_m, c.cta_n, c.num_warps, c.num_stages) == shape)
    rng = np.random.default_rng(0)
    packed, a = pack(rng, sizes, mode, group), rng.normal(size=(sizes.M, sizes.K))
    run = emulate(family, variant(split(config, parts), mode, group), sizes, a, packed)
    np.testing.assert_allclose(run.c, a @ packed.dense[: sizes.N, : sizes.K].T, rtol=1e-10, atol=1e-9)
    # blocks beyond K and strips beyond the last column's CTA are left out, nothing is read twice
    reads = run.reads.reshape(-1, 2 * ceil_div(sizes.K, 128), 4, 32)
    real = reads[:, : ceil_div(sizes.K, 64)].transpose(0, 2, 1, 3).reshape(reads.shape[0] * 4, -1)
    assert (real[: ceil_div(sizes.N, 16)] == 1).all()
    assert (reads <= 1).all()
    assert not reads[:, ceil_div(sizes.K, 64) :].any()


def test_places_in_the_ring_of_a_team() -> None:
    for _, config in CONFIGS:
        if config.family != GemvMmaFamily.name:
            continue
        for mode, group in MODES:
            v = variant(config, mode, group)
            weights, tokens = config.cta_n // 16 * 512, config.cta_m * 128
            scales = max(1, 64 // group) * config.cta_n * (4 if mode == 2 else 2) if group else 0
            slot, ring = weights + tokens + scales, GemvMmaFamily().ring_bytes(v)
            assert slot % 16 == weights % 128 == ring % 128 == 0
            assert 0 <= ring - config.num_stages * slot < 128


def test_lanes_of_a_store_of_sums_hit_distinct_banks() -> None:
    for _, config in CONFIGS:
        address = LANES % 4 * 2 * (config.cta_n + 4) + LANES // 4
        assert len(set(address % 32)) == 32


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
    for family, config in CONFIGS:
        with case(config):
            for mode, group in MODES:
                v = variant(config, mode, group)
                assert family.refusal(v, None, H200) in (None, "too few registers")
                smem, per_team = family.smem_bytes(v), config.cta_m * 128 * config.num_stages
                assert config.cta_k // 64 * per_team <= smem <= 227 << 10
                assert smem % 16 == 0
                assert family.min_ctas(v) * family.num_threads(v) <= 2048
            for sizes in (Sizes(1, 8192, 28672), Sizes(5, 136, 8), Sizes(17, 4096, 4104)):
                for parts in (1, 3):
                    launch = family.launch(variant(split(config, parts)), sizes, 132, 1)
                    x, y, z = launch.grid
                    assert (x - 1) * config.cta_n < sizes.N <= x * config.cta_n
                    assert (z - 1) * config.cta_m < sizes.M <= z * config.cta_m
                    assert y == parts
                    assert launch.num_threads == 32 * config.num_warps
                    assert launch.workspace_bytes == (x * y * z * config.cta_m * config.cta_n * 4 if parts > 1 else 0)
                    assert launch.num_counters == (x * z if parts > 1 else 0)


def test_splits() -> None:
    for family, config in CONFIGS:
        with case(config):
            for sizes in (Sizes(1, 8192, 28672), Sizes(1, 4096, 4096), Sizes(8, 28672, 8192), Sizes(1, 64, 64)):
                ways = list(family.splits(variant(config), sizes, H200))
                assert ways[0] == (Decomposition.DATA_PARALLEL, 1)
                assert len(set(ways)) == len(ways) <= 6
                for how, parts in ways[1:]:
                    assert how is Decomposition.SPLIT_K
                    assert 1 < parts <= sizes.K // config.cta_k  # work for every team
                    assert family.refusal(variant(split(config, parts)), sizes, H200) is None


def test_arguments() -> None:
    family = GemvMmaFamily()
    config = split(next(family.configs()), 3)
    sizes, operands = Sizes(2, 328, 72), Operands(11, 336, 12, 13, 14, 15, 16, 17, 0.5, 2, 6, 3)
    launch = family.launch(variant(config), sizes, 132, 1)
    arguments = family.arguments(variant(config), sizes, launch, operands, lambda *_: None)
    assert [float(x) for x in arguments] == [11, 12, 13, 14, 15, 16, 17, 0.5, 2, 72, 328, 336, 2, 6, 3, 2, 0]
    assert {type(x) for x in arguments} == {np.uint64, np.float32, np.int32}


def test_refusals() -> None:
    family: Family = GemvFamily()
    config = next(family.configs())
    v, sizes = variant(config), Sizes(1, 4096, 4096)
    assert family.refusal(v, sizes, H200) is None
    assert "tokens" in str(family.refusal(v, Sizes(65, 4096, 4096), H200))
    assert "multiples of 8" in str(family.refusal(v, Sizes(1, 4100, 4096), H200))
    assert "blocks" in str(family.refusal(variant(split(config, 3)), Sizes(1, 128, 4096), H200))
    assert "shared memory" in str(family.refusal(v, sizes, H200._replace(smem_per_cta_bytes=1024)))
    assert "threads" in str(family.refusal(v, sizes, H200._replace(max_threads_per_sm=128)))
