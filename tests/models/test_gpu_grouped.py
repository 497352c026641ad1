"""The cost of grouped GEMMs on GPUs: by hand for small cases, the search against the whole list, even groups."""

import math
import random

import numba
import numpy as np
import numpy.typing as npt
import pytest

from gemm_eval import GemmProblem
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.jit import read_only
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu import BEST_RASTER, GPU_COST_DTYPE, KERNEL_COST_DTYPE, OURS, Packed, pack_gpu
from gemm_eval.models.gpu.cost_kernels import loaded_time_us
from gemm_eval.models.gpu.generic_kernels import GENERIC
from gemm_eval.models.gpu.w4a16.cost_kernels import W4A16
from gemm_eval.models.gpu.w4a16.family_kernels import GROUPED_FAMILIES
from gemm_eval.search import OF_GENERIC, OF_OURS
from gemm_eval.search.gpu import find_best_config, find_best_config_many, find_top_configs
from gemm_eval.workload import (
    NO_LAYOUTS,
    GemmTypes,
    Layouts,
    RunOptions,
    distinct_groups,
    pack_layouts,
    without_lone_groups,
)
from tests.cases import without_counts
from tests.grouped_cases import CASES, GroupedCase, draw_problem

EXACT = 1e-12
FIRST = np.zeros(1, np.int64)
NUM_PROBLEMS = 2 if numba.config.DISABLE_JIT else 20


def best_of(problem: GemmProblem, packed: Packed) -> npt.NDArray[np.void]:
    return find_best_config(load_arch("h200-sxm", GpuSpec), problem, packed)


def times_of(record: np.void) -> dict[str, float]:
    from gemm_eval.models.gpu import unpack_gpu_cost

    return dict(unpack_gpu_cost(record).breakdown)


# by hand


def norm4(*times: float) -> float:
    return sum(time**4 for time in times) ** 0.25


@pytest.mark.parametrize(
    ("row_groups", "K", "N", "waves"),
    [((70, 0, 3, 130), 512, 256, 1), ((700, 0, 3, 130, 64, 0, 1), 1024, 4096, 2), ((65, 1), 256, 128, 1)],
)
def test_a_kernel_of_one_tile_by_hand(row_groups: tuple[int, ...], K: int, N: int, waves: int) -> None:
    """Triton's 64 x 64 tile: CTAs of one row group each, no clusters, all of K at once, all of it cold."""
    packed = pack_gpu(
        load_arch("h200-sxm", GpuSpec), GemmTypes.parse("bf16"),
        RunOptions("triton/64x64x32w4s3", "cold-all", "burst", correction=False),
    )  # fmt: skip
    (row,), p, c = packed.candidates, packed.params[0], packed.coefficients[0, 0]
    assert (row["cta_m"], row["cta_n"], row["cta_k"], row["schedule"]) == (64, 64, 32, Schedule.MULTISTAGE)

    # tiles: each group's last one is ragged, and an empty group has none
    steps = K // 32
    units = sum(math.ceil(rows / 64) for rows in row_groups) * (N // 64)
    at_once = min(units, int(row["grid_cap"]))
    sms = min(at_once, int(row["sm_cap"]))
    full, rest = divmod(units, at_once)
    assert full + (rest > 0) == waves

    # bytes: weights of groups that have rows, once; A and C have no padding
    groups, rows = [num for num in row_groups if num], sum(row_groups)
    a, b, c_bytes = rows * K * 2.0, len(groups) * K * N * 2.0, rows * N * 2.0
    read_again = a * (N // 64) + b / len(groups) * sum(math.ceil(num / 64) for num in groups)
    waste = 1.0 + c["half_line_waste"]  # a k-step takes 64 bytes of a row
    from_l2 = (read_again + c["l2_first"] * (a + b)) * waste
    from_dram = (a + b) * waste + c_bytes
    assert c["l2_hold_bytes"] * len(groups) > a + b  # so that L2 holds what is read again

    # a k-step of a CTA, in cycles: rows that the tile has in the mean, each byte of a stage written and read once
    work = row["matrix_cycles"] / c["matrix_frac"]
    tile_bytes = rows / (units // (N // 64)) * a / rows + min(64, N) * b / (len(groups) * N)
    ingest = tile_bytes * waste / steps / c["sm_l2_bytes_per_cycle"]
    assert row["operand_bytes"] == row["stage_bytes"] == (64 + 64) * 32 * 2
    fill = math.hypot(work, 2 * row["stage_bytes"] / p["smem_bytes_per_cycle"])
    busy = math.hypot(fill, ingest)
    latency = p["load_latency_cycles"] + c["load_wait_cycles"]
    round_trip = (fill + ingest + latency) / (row["num_stages"] - 1)
    stored = 64 * 64 * row["store_elem_bytes"] / c["epilogue_bytes_per_cycle"]

    def wave_cycles(of_an_sm: int) -> float:
        step = max(of_an_sm * busy, round_trip, work + c["step_cycles"])
        return float(steps * step + c["tile_cycles"] + of_an_sm * stored)

    main_us = 0.0
    for ctas, cycles in (
        (full * at_once, full * wave_cycles(math.ceil(at_once / sms))),
        (rest, wave_cycles(math.ceil(rest / p["num_sms"]))),
    ):
        dram_us = ctas * from_dram / units / c["dram_bytes_per_us"]
        l2_us = ctas * from_l2 / units / c["l2_bytes_per_us"]
        main_us += norm4(cycles / p["cycles_per_us"], dram_us, l2_us) if ctas else 0.0
    main_us += c["store_exposed_frac"] * c_bytes / p["dram_peak_bytes_per_us"]
    matrix_us = units * steps * row["matrix_cycles"] / p["num_sms"] / p["cycles_per_us"]
    prologue_us = c["kernel_us"] + p["load_latency_cycles"] / p["cycles_per_us"] + c["ramp_us"] * sms / p["num_sms"]
    latency_us = p["launch_us"] + prologue_us + loaded_time_us(p, main_us, matrix_us, 1.0)
    latency_us *= 1.0 + c["choice_loss"]

    found = best_of(GemmProblem.grouped(row_groups, K, N, input_dtype="bf16"), packed)[0]
    assert found["latency_us"] == pytest.approx(latency_us, rel=EXACT)
    assert (found["num_tiles"], found["num_waves"], found["active_sms"]) == (units, waves, sms)
    assert (found["dram_a_bytes"], found["dram_b_bytes"], found["dram_c_bytes"]) == (a, b, c_bytes)
    breakdown = times_of(found)
    assert breakdown["l2_us"] == pytest.approx(from_l2 / c["l2_bytes_per_us"], rel=EXACT)
    assert breakdown["dram_us"] == pytest.approx(from_dram / c["dram_bytes_per_us"], rel=EXACT)
    assert breakdown["outside_us"] == breakdown["reduction_us"] == 0.0


def test_rows_of_tiles_beyond_each_group_are_filled_slowly() -> None:
    """PyTorch's kernels load by TMA: rows that lie beyond a group take their time, those of clusters too."""
    packed = pack_gpu(
        load_arch("h200-sxm", GpuSpec), GemmTypes.parse("bf16"),
        RunOptions("torch/128x256", "cold", "burst", correction=False),
    )  # fmt: skip
    (row,), p, c = packed.candidates, packed.params[0], packed.coefficients[0, 0]
    row_groups, K, N = (100, 0, 129, 256), 1024, 768
    empty = (128 - 100) + (256 - 129) + 0
    rows = empty * (N // 256)

    found = best_of(GemmProblem.grouped(row_groups, K, N, input_dtype="bf16"), packed)[0]
    assert (row["cluster_m"], row["cluster_n"]) == (2, 1)
    assert found["num_tiles"] == (2 + 2 + 2) * 3  # whole clusters of two tiles along M, each of one group
    expected = rows * (K // row["cta_k"]) / (c["outside_rows_per_cycle"] * p["cycles_per_us"])
    assert times_of(found)["outside_us"] == pytest.approx(expected, rel=EXACT)


def test_what_l2_cannot_hold_is_read_again_group_by_group() -> None:
    """Groups whose panels outgrow L2 add up: two of different rows cost what each would, less what is shared."""
    packed = pack_gpu(
        load_arch("a100-sxm-80gb", GpuSpec), GemmTypes.parse("bf16"),
        RunOptions("triton/64x64x32", "cold-all", "burst", correction=False),
    )  # fmt: skip

    def read_bytes(*row_groups: int) -> int:
        found = best_of(GemmProblem.grouped(row_groups, 8192, 28672, input_dtype="bf16"), packed)[0]
        return int(found["dram_a_bytes"] + found["dram_b_bytes"])

    alone = [read_bytes(rows) for rows in (8192, 4096)]
    together = read_bytes(8192, 4096)
    compulsory = (8192 + 4096 + 2 * 28672) * 8192 * 2
    assert together > 1.2 * compulsory
    assert together == pytest.approx(sum(alone), rel=0.1)


# the search


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_search_is_the_best_of_the_whole_list(case: GroupedCase) -> None:
    """To the bit, and no kernel's bound is above any of its configs."""
    arch, types = case.arch, case.types
    rng = random.Random(str(case))
    for place in range(NUM_PROBLEMS):
        packed = pack_gpu(arch, types, case.options(("cold", "warm", "cold-all")[place % 3]))
        problem = draw_problem(rng, types)
        best = find_best_config(arch, problem, packed)
        top = find_top_configs(arch, problem, packed, 1)
        assert without_counts(best) == without_counts(top), problem
        sizes = np.array([problem.sizes], np.int64)
        many = find_best_config_many([packed], FIRST, sizes, layouts=pack_layouts([problem.row_groups]))
        assert many.tobytes() == best.tobytes()
        check_bounds(problem, packed)


def check_bounds(problem: GemmProblem, packed: Packed) -> None:
    """Of the chosen kernels of the search: none is below its bound, whatever its split."""
    layouts = pack_layouts([problem.row_groups])
    p, coefficients = packed.params[0], packed.coefficients[0]
    sizes, layouts = without_lone_groups(np.array([problem.sizes], np.int64), layouts)
    groups = distinct_groups(problem.row_groups, problem.G, problem.M)
    rules, searches = (W4A16, OF_OURS) if packed.is_ours else (GENERIC, OF_GENERIC)
    terms = rules.problem_terms(p, coefficients[0], problem.K, problem.N, *groups)
    bounds = np.empty(len(packed.candidates))
    rules.row_bounds_us(p, coefficients, terms, packed.columns, 0, bounds)
    tables, given = (packed.params, packed.candidates, packed.coefficients), (*sizes[0].tolist(), layouts)
    num = searches.list_configs(*tables, *given, np.empty((0, 2), np.int64))
    records, which = np.zeros(num, KERNEL_COST_DTYPE), np.empty((num, 2), np.int64)
    searches.list_configs(*tables, *given, which)
    searches.evaluate_configs(*tables, which, BEST_RASTER, *given, records)
    latency_us = records["latency_us"]
    assert num > 0
    assert np.all(bounds[which[:, 0]] <= latency_us), problem
    index, split = which[np.argmin(latency_us)].tolist()
    row = packed.candidates[index]
    cost = rules.config_cost(p, row, coefficients[row["coefficient_set"]], terms, split, BEST_RASTER)
    assert cost.latency_us == pytest.approx(latency_us.min(), rel=1e-14)  # compiled alone, multiplies and adds may fuse


# even groups


def layouts_of(rows: list[int], counts: list[int]) -> Layouts:
    """The groups of one problem as they are given, even or not."""
    arrays = ([0], [0, len(rows)], rows, counts)
    return Layouts(*(read_only(np.array(values, np.int64)) for values in arrays))


def search(packed: Packed, sizes: tuple[int, int, int, int], layouts: Layouts) -> npt.NDArray[np.void]:
    out = np.zeros(1, GPU_COST_DTYPE)
    (OF_OURS if packed.is_ours else OF_GENERIC).find_best_of_range(
        packed.params, packed.candidates, packed.columns, packed.ranges, packed.coefficients, FIRST,
        np.array([sizes], np.int64), layouts, 0, 1, out.view(KERNEL_COST_DTYPE),
    )  # fmt: skip
    return out


@pytest.mark.parametrize("case", [case for case in CASES if case.library != OURS], ids=str)
def test_groups_of_one_size_have_the_bits_of_a_batch(case: GroupedCase) -> None:
    rng = random.Random(f"even {case}")
    packed = pack_gpu(case.arch, case.types, case.options())
    for _ in range(NUM_PROBLEMS):
        problem = draw_problem(rng, case.types)
        G, M = rng.choice(((1, problem.M), (len(problem.row_groups or ()), problem.M), (2, problem.M)))
        sizes = (G, M, problem.K, problem.N)
        plain = search(packed, sizes, NO_LAYOUTS)
        assert search(packed, sizes, layouts_of([M], [G])).tobytes() == plain.tobytes()
        if G > 1:  # through the sums over sizes: the order of additions differs, nothing else
            split = search(packed, sizes, layouts_of([M, M], [1, G - 1]))
            assert split["latency_us"] == pytest.approx(plain["latency_us"], rel=1e-9)
            assert split["num_tiles"] == plain["num_tiles"]


@pytest.mark.parametrize("case", [case for case in CASES if case.library == OURS], ids=str)
@pytest.mark.parametrize("num_groups", [2, 32])
def test_our_kernels_of_groups_run_equal_groups_too(case: GroupedCase, num_groups: int) -> None:
    """A batch may run as launches of a kernel of one GEMM; groups do not, whether or not one has a row more."""
    packed = pack_gpu(case.arch, case.types, case.options())
    for rows in (1, 3, 40, 128):
        even, one_more = (
            GemmProblem.grouped(groups, 768, 2048, **case.types.words)
            for groups in ((rows,) * num_groups, (rows + 1, *(rows,) * (num_groups - 1)))
        )
        best, other = (find_best_config(case.arch, problem, packed)[0] for problem in (even, one_more))
        assert best["family"] in GROUPED_FAMILIES
        assert (1.0 - case.row_helps) * best["latency_us"] <= other["latency_us"] <= 1.3 * best["latency_us"]
        assert find_top_configs(case.arch, even, packed, 1)["latency_us"] == best["latency_us"]
