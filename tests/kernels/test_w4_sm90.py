"""The Hopper family without a GPU: its configs and launches, and the index arithmetic of sm90.cu, in Python."""

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_eval.arch.gpu import DeviceLimits, cluster_sms
from gemm_eval.dtypes import DType
from gemm_eval.kernels.families.base import Launch, Operands, Sizes, Variant, WeightMode, ceil_div
from gemm_eval.kernels.families.sm90 import Sm90ClusterFamily, Sm90Family
from gemm_eval.kernels.registry import SOURCES
from gemm_eval.mapping import Decomposition, KernelConfig, Schedule
from tests.cases import case

FAMILY, CLUSTER_FAMILY = Sm90Family(), Sm90ClusterFamily()
CONFIGS, CLUSTER_CONFIGS = tuple(FAMILY.configs()), tuple(CLUSTER_FAMILY.configs())
H200 = DeviceLimits((9, 0), 132, 232448, 233472, 1024, 65536, 2048, 32)
KINDS = [(WeightMode.COLUMN, 0), *itertools.product((WeightMode.GROUP, WeightMode.GROUP_ZERO), (32, 64, 128))]
SOURCE = (SOURCES / FAMILY.source).read_text()


def variant(config: KernelConfig, kind: tuple[WeightMode, int] = (WeightMode.GROUP, 128), **changes: Any) -> Variant:
    return Variant(config._replace(**changes), DType.FP16, *kind)


def consumers_of(config: KernelConfig) -> int:
    return config.num_warps // 4


def find(m: int, n: int, k: int, schedule: Schedule, cluster: tuple[int, int] = (1, 1)) -> KernelConfig:
    wanted = (m, n, k, *cluster, schedule)
    return next(c for c in CONFIGS if (c.cta_m, c.cta_n, c.cta_k, c.cluster_m, c.cluster_n, c.schedule) == wanted)


def cuts(config: KernelConfig, sizes: Sizes, limits: DeviceLimits) -> Iterator[Variant]:
    """With every way to cut K that the family has for some sizes, whether or not it makes sense for these."""
    splits = {*FAMILY.splits(variant(config), sizes, limits), (Decomposition.STREAM_K, 1)}
    for decomposition, split_k in sorted(splits):
        yield variant(config, decomposition=decomposition, split_k=split_k)


# ---- what the kernel is given ---------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """As in sm90.cu, and the kernel's other arguments that matter."""

    tiles_m: int
    tiles_n: int
    num_units: int
    split: int
    share: int
    remainder: int
    swizzle: int
    box_rows: int
    boxes: list[tuple[int, int]]  # of A and, where results go through shared memory, of C


def names_of_arguments() -> list[str]:
    signature = re.search(rf"{FAMILY.entry}\((.*?)\) \{{", SOURCE, re.DOTALL)
    assert signature is not None
    of_one_gemm = signature.group(1).split("#if GROUPED")[0]
    return [parameter.split()[-1].lstrip("*") for parameter in of_one_gemm.split(",")]


NAMES = names_of_arguments()


def arguments_of(v: Variant, sizes: Sizes, launch: Launch, boxes: list[tuple[int, int]]) -> dict[str, Any]:
    def tensor_map(address: int, dtype: DType, shape: tuple[int, int], stride: int, box: tuple[int, int]) -> str:
        assert address in (1 << 40, 1 << 41)
        assert shape[0] == sizes.M
        boxes.append(box)
        return f"{shape[1]} of {stride}"

    num_k_blocks = 2 * ceil_div(sizes.K, 128)
    operands = Operands(
        1 << 40, sizes.K + 8, 2, 3, 4, 1 << 41, 5, 6, 0.5, ceil_div(sizes.N, 64), num_k_blocks, num_k_blocks // 2
    )
    arguments = FAMILY.arguments(v, sizes, launch, operands, tensor_map)
    return dict(zip(NAMES, arguments, strict=True))


def problem_of(v: Variant, sizes: Sizes, launch: Launch) -> Problem:
    boxes: list[tuple[int, int]] = []
    given = arguments_of(v, sizes, launch, boxes)
    numbers = (
        int(given[name]) for name in ("tiles_m", "tiles_n", "split", "share", "remainder", "swizzle", "box_rows")
    )
    tiles_m, tiles_n, split, share, remainder, swizzle, box_rows = numbers
    return Problem(tiles_m, tiles_n, int(given["num_k_blocks"]) // 2, split, share, remainder, swizzle, box_rows, boxes)


# ---- Scheduler and place, as sm90.cu has them -----------------------------------------------------------------------


class Work(NamedTuple):
    tile: int
    begin: int
    end: int
    part: int
    parts: int


def first_unit(p: Problem, cluster: int) -> int:
    return cluster * p.share + min(cluster, p.remainder)


def owner(p: Problem, unit: int) -> int:
    larger = p.remainder * (p.share + 1)
    return unit // (p.share + 1) if unit < larger else p.remainder + (unit - larger) // p.share


def take_all(p: Problem, cluster: int, num_clusters: int) -> Iterator[Work]:
    if p.split:
        for item in range(cluster, p.tiles_m * p.tiles_n * p.split, num_clusters):
            tile = item // p.split
            part = p.split - 1 - (item - tile * p.split)
            yield Work(tile, part * p.num_units // p.split, (part + 1) * p.num_units // p.split, part, p.split)
        return
    cluster = num_clusters - 1 - cluster
    unit, last = first_unit(p, cluster), first_unit(p, cluster + 1)
    while unit < last:
        tile = unit // p.num_units
        start = tile * p.num_units
        begin = unit - start
        end = min(p.num_units, begin + last - unit)
        part, parts = 0, 1
        if end - begin != p.num_units:
            first = owner(p, start)
            part, parts = cluster - first, owner(p, start + p.num_units - 1) - first + 1
        yield Work(tile, begin, end, part, parts)
        unit += end - begin


def slot(p: Problem, tile: int, part: int) -> int:
    return tile * (p.split - 1) + part - 1 if p.split else owner(p, tile * p.num_units) + part


def place(p: Problem, config: KernelConfig, tile: int, rank: int) -> tuple[int, int]:
    per_group = p.swizzle * p.tiles_n
    group = tile // per_group
    first, rest = group * p.swizzle, tile - group * per_group
    height = min(p.tiles_m - first, p.swizzle)
    return (
        (first + rest % height) * config.cluster_m + rank % config.cluster_m,
        rest // height * config.cluster_n + rank // config.cluster_m,
    )


class Case(NamedTuple):
    sizes: Sizes
    config: KernelConfig
    limits: DeviceLimits


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Few tiles, so that all of them can be looked at; few SMs or many."""
    config = draw(st.sampled_from(CONFIGS))
    tokens, columns = config.cta_m * config.cluster_m, config.cta_n * config.cluster_n
    sizes = Sizes(
        draw(st.integers(1, 11 * tokens)), 8 * draw(st.integers(1, 16 * 20)), 8 * draw(st.integers(1, columns * 7 // 8))
    )
    return Case(sizes, config, H200._replace(num_sms=draw(st.sampled_from([1, 2, 7, 16, 48, 132, 144]))))


@settings(max_examples=150)
@given(cases())
def test_every_unit_of_every_tile_is_taken_once_and_every_part_has_its_place(case: Case) -> None:
    sizes, config, limits = case
    ctas = config.cluster_m * config.cluster_n
    for v in cuts(config, sizes, limits):
        launch = FAMILY.launch(v, sizes, limits.num_sms, 1)
        p, num_clusters = problem_of(v, sizes, launch), launch.grid[0] // ctas
        taken: dict[int, list[Work]] = {}
        when: dict[tuple[int, int], tuple[int, int]] = {}  # (tile, part) to (item of its CTA, CTA)
        for cluster in range(num_clusters):
            works = list(take_all(p, cluster, num_clusters))
            assert works  # nobody is launched for nothing
            for item, work in enumerate(works):
                taken.setdefault(work.tile, []).append(work)
                when[work.tile, work.part] = item, cluster
        assert sorted(taken) == list(range(p.tiles_m * p.tiles_n))
        num_slots, rest = divmod(launch.workspace_bytes, 4 * config.cta_m * config.cta_n * ctas)
        assert rest == 0
        used: set[int] = set()
        for tile, works in taken.items():
            works.sort(key=lambda work: work.part)
            assert [work.part for work in works] == list(range(len(works)))
            assert {work.parts for work in works} == {len(works)}
            ends = [0, *(work.end for work in works)]
            assert [work.begin for work in works] == ends[:-1]  # in the order of k
            assert ends[-1] == p.num_units
            assert all(work.begin < work.end for work in works)
            if len(works) > 1:
                slots = {slot(p, tile, part) for part in range(1, len(works))}
                assert len(slots) == len(works) - 1
                assert not slots & used
                used |= slots
                shares = consumers_of(config) if config.schedule is Schedule.COOPERATIVE else 1
                # the last counter of the tile's last CTA
                assert ((tile + 1) * ctas - 1) * shares + shares - 1 < launch.num_counters
                # part 0 waits for parts that were dealt before it, so that no two CTAs wait for each other
                assert all(when[tile, part] < when[tile, 0] for part in range(1, len(works)) if p.split)
                assert all(when[tile, part][1] < when[tile, 0][1] for part in range(1, len(works)) if not p.split)
        assert max(used, default=-1) < num_slots
        assert bool(launch.workspace_bytes) == bool(launch.num_counters)


@settings(max_examples=150)
@given(cases())
def test_ctas_of_all_clusters_cover_c_once(case: Case) -> None:
    sizes, config, limits = case
    v = variant(config)
    p = problem_of(v, sizes, FAMILY.launch(v, sizes, limits.num_sms, 1))
    ctas = config.cluster_m * config.cluster_n
    places = [place(p, config, tile, rank) for tile in range(p.tiles_m * p.tiles_n) for rank in range(ctas)]

    assert len(set(places)) == len(places)
    assert set(places) == set(
        itertools.product(range(p.tiles_m * config.cluster_m), range(p.tiles_n * config.cluster_n))
    )
    assert (p.tiles_m * config.cluster_m - config.cluster_m) * config.cta_m < sizes.M
    assert p.tiles_m * config.cluster_m * config.cta_m >= sizes.M
    assert (p.tiles_n * config.cluster_n - config.cluster_n) * config.cta_n < sizes.N
    assert p.tiles_n * config.cluster_n * config.cta_n >= sizes.N


def test_the_raster_walks_along_m_in_bands() -> None:
    config = find(64, 64, 128, Schedule.PINGPONG)
    sizes = Sizes(64 * 11, 4096, 64 * 3)
    p = problem_of(variant(config), sizes, FAMILY.launch(variant(config), sizes, 132, 1))
    places = [place(p, config, tile, 0) for tile in range(33)]

    assert p.swizzle == 8
    assert places[:9] == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (0, 1)]
    assert places[24:28] == [(8, 0), (9, 0), (10, 0), (8, 1)]


# ---- copies ---------------------------------------------------------------------------------------------------------


def test_a_stage_gets_the_bytes_that_it_waits_for() -> None:
    """What the CTAs of a cluster copy and multicast into the stage of one of them, against its expected bytes."""
    for config in CONFIGS:
        with case(config):
            step_blocks, row_blocks = config.cta_k // 64, config.cta_n // 64
            for (mode, group_size), M in itertools.product(KINDS, (1, 7, config.cta_m, 5 * config.cta_m + 1)):
                v, sizes = variant(config, (mode, group_size)), Sizes(M, 512, 4096)
                p = problem_of(v, sizes, FAMILY.launch(v, sizes, 132, 1))
                groups = 0 if mode is WeightMode.COLUMN else max(1, config.cta_k // group_size)
                group_bytes = 64 * (4 if mode is WeightMode.GROUP_ZERO else 2)
                slice_rows, slice_bytes = config.cta_m // config.cluster_n, step_blocks * 2048 // config.cluster_m
                tokens = [
                    (block * config.cta_m * 128 + rank_n * slice_rows * 128, p.box_rows * 128)
                    for block, rank_n in itertools.product(range(step_blocks), range(config.cluster_n))
                ]
                weights = [
                    (block * step_blocks * 2048 + rank_m * slice_bytes, slice_bytes)
                    for block, rank_m in itertools.product(range(row_blocks), range(config.cluster_m))
                ]
                scales = [(block * groups * group_bytes, groups * group_bytes) for block in range(row_blocks)]
                expected = step_blocks * config.cluster_n * p.box_rows * 128
                assert sum(count for _, count in tokens) == expected
                assert [at for at, _ in sorted(weights)] == [i * slice_bytes for i in range(len(weights))]
                assert all(at % 16 == count % 16 == 0 for at, count in (*weights, *scales))
                assert all(at % 1024 == 0 for at, _ in tokens)  # 8 rows of 128-byte swizzle
                assert p.box_rows <= min(sizes.M, slice_rows)
                if slice_rows <= sizes.M:
                    assert p.box_rows == slice_rows
                    assert sum(count for _, count in tokens) == step_blocks * config.cta_m * 128
                fixed = (
                    1024 + consumers_of(config) * FAMILY.macros(v)["EPILOGUE_TOKENS"] * 128 * (config.cta_m > 16) + 32
                )
                stage_bytes = (
                    step_blocks * config.cta_m * 128 + row_blocks * (step_blocks * 2048 + groups * group_bytes) + 16
                )
                assert FAMILY.smem_bytes(v) == fixed + config.num_stages * stage_bytes
                assert all(1 <= rows <= 256 and columns == 64 for rows, columns in p.boxes)
                assert all(rows <= sizes.M for rows, _ in p.boxes)
                assert len(p.boxes) == (2 if config.cta_m > 16 else 1)


# ---- parts of K in a cluster ----------------------------------------------------------------------------------------


def test_clusters_that_share_k_find_room_at_once() -> None:
    sizes, num_able = Sizes(64, 7168, 1536), 0
    assert {config.decomposition for config in CLUSTER_CONFIGS} == {Decomposition.SPLIT_K}
    for config in CLUSTER_CONFIGS:
        v = variant(config)
        tiles = ceil_div(sizes.M, config.cta_m) * ceil_div(sizes.N, config.cta_n)
        launch = CLUSTER_FAMILY.launch(v, sizes, 132, 1)
        assert CLUSTER_FAMILY.compiled(config) == config
        assert list(CLUSTER_FAMILY.splits(v, sizes, H200)) == [(Decomposition.SPLIT_K, config.split_k)]
        assert (launch.grid, launch.workspace_bytes, launch.num_counters) == ((tiles * config.split_k, 1, 1), 0, 0)
        fits = tiles * config.split_k <= cluster_sms(132, config.split_k) * CLUSTER_FAMILY.macros(v)["CTAS_PER_SM"]
        assert (CLUSTER_FAMILY.refusal(v, sizes, H200) is None) is fits
        num_able += fits
    assert num_able >= 40
    crowded = next(config for config in CLUSTER_CONFIGS if config.split_k == 8)
    assert "CTAs, the GPU holds" in str(CLUSTER_FAMILY.refusal(variant(crowded), Sizes(4096, 4096, 4096), H200))
    assert CLUSTER_FAMILY.refusal(variant(crowded), None, H200._replace(num_sms=1)) is not None


# ---- the family -----------------------------------------------------------------------------------------------------


def test_configs_are_unique_and_fit_whatever_the_weights() -> None:
    assert len(set(CONFIGS)) == len(CONFIGS)
    assert {(config.decomposition, config.split_k) for config in CONFIGS} == {(Decomposition.DATA_PARALLEL, 1)}
    for config, kind in itertools.product(CONFIGS, KINDS):
        v = variant(config, kind)
        assert FAMILY.smem_bytes(v) <= 227 * 1024
        assert FAMILY.refusal(v, None, H200) is None
        macros = FAMILY.macros(v)
        assert macros["CTAS_PER_SM"] * (FAMILY.smem_bytes(v) + 1024) <= 228 * 1024
        assert macros["CTA_M"] // 2 * macros["MB"] <= (
            168 if macros["CONSUMERS"] == 2 and macros["MB"] == 2 else 128
        )  # sums
        assert macros["MB"] * 64 * (macros["CONSUMERS"] if macros["COOPERATIVE"] else 1) == config.cta_n


@pytest.mark.parametrize(
    ("changes", "sizes", "limits", "reason"),
    [
        ({}, None, H200._replace(smem_per_cta_bytes=101376), "bytes of shared memory, a CTA has 101,376"),
        ({"cluster_m": 2}, Sizes(128, 4096, 4096), H200, "cluster_m 2 needs more than 128 tokens, there are 128"),
        ({"cluster_n": 2}, Sizes(128, 4096, 128), H200, "cluster_n 2 needs more than 128 columns, there are 128"),
        (
            {"decomposition": Decomposition.SPLIT_K, "split_k": 4}, Sizes(1, 264, 128), H200,
            "K = 264 has 3 units of 128, fewer than split_k",
        ),
    ],
)  # fmt: skip
def test_refusals_say_why(changes: dict[str, Any], sizes: Sizes | None, limits: DeviceLimits, reason: str) -> None:
    config = find(128, 128, 128, Schedule.COOPERATIVE)

    assert reason in str(FAMILY.refusal(variant(config, **changes), sizes, limits))
    assert FAMILY.refusal(variant(config), sizes, H200) is None


def test_arguments_follow_the_kernel() -> None:
    config = find(128, 128, 128, Schedule.COOPERATIVE, (1, 2))
    v, sizes = variant(config, decomposition=Decomposition.SPLIT_K, split_k=3), Sizes(50, 1000, 520)
    boxes: list[tuple[int, int]] = []
    given = arguments_of(v, sizes, FAMILY.launch(v, sizes, 132, 1), boxes)
    signature = SOURCE[SOURCE.index(f"{FAMILY.entry}(const") :].split(")")[0]

    assert given["map_a"] == "1000 of 1008"
    assert given["map_c"] == "520 of 520"
    assert boxes == [(50, 64), (50, 64)]
    for name, value in list(given.items())[2:]:
        kind = np.uint64 if re.search(rf"\* ?(__restrict__ )?{name}\b", signature) else np.uint32
        assert type(value) is (np.float32 if name == "alpha" else kind), name
    numbers = {name: int(given[name]) for name in ("M", "N", "num_column_blocks", "num_k_blocks", "split", "swizzle")}
    assert numbers == {"M": 50, "N": 520, "num_column_blocks": 9, "num_k_blocks": 16, "split": 3, "swizzle": 1}
