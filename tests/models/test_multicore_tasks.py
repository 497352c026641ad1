"""Tasks of a core, by hand: MODEL.md, "Latency of a core"."""

from __future__ import annotations

import pytest

from gemm_eval import ArchValidationError, GEMMEvaluator, GemmProblem, GEMMResult, MulticoreSpec
from gemm_eval.dtypes import DType

CHIP = MulticoreSpec(
    name="starter", num_cores=2, frequency_ghz=1.0, cube_m=4, cube_k=1, cube_n=8,
    cube_steps_per_cycle={DType.FP32: 1.0}, default_dtype=DType.FP32, sram_bytes=1 << 20, dram_gb_per_s=100.0,
    reduction="none", launch_us=1.0,
)  # fmt: skip
TASK_US = 3.0


def cost(rows: int | tuple[int, ...], tile_m: int, P_M: int = 1, **changes: float) -> GEMMResult:
    """Rows of one GEMM, or of each group of a grouped one, in tiles of so many."""
    M, groups = (rows, None) if isinstance(rows, int) else (max(rows), rows)
    problem = GemmProblem(len(groups or (0,)), M, 64, 64, input_dtype="fp32", row_groups=groups)
    mapping = ((1, P_M, 1, 1), (tile_m, 64, 64), "mnk")
    return GEMMEvaluator(CHIP.with_(**changes), disk_cache=False).evaluate_mapping(problem, mapping)


@pytest.mark.parametrize(
    ("rows", "tile_m", "P_M", "tasks"),
    [(32, 32, 1, 1), (32, 8, 1, 4), (30, 8, 1, 4), (32, 8, 2, 2), ((32, 32, 0), 8, 1, 8), ((32, 8, 3), 8, 1, 6)],
)
def test_tiles_of_the_same_rows_are_a_task(rows: int | tuple[int, ...], tile_m: int, P_M: int, tasks: int) -> None:
    plain, started = cost(rows, tile_m, P_M), cost(rows, tile_m, P_M, task_us=TASK_US)
    assert started.breakdown["launch_us"] == 1.0 + (tasks - 1) * TASK_US
    assert started.latency_us == pytest.approx(plain.latency_us + (tasks - 1) * TASK_US)
    assert started.dram_bytes == plain.dram_bytes


def test_a_queue_hides_them() -> None:
    assert cost(32, 8, task_us=TASK_US, launch_floor_us=500.0).latency_us == 500.0


def test_a_choice_takes_fewer_of_them() -> None:
    problem = GemmProblem(1, 256, 512, 512, input_dtype="fp32")
    rows = {}
    for task_us in (0.0, 100.0):
        chip = CHIP.with_(num_cores=1, sram_bytes=200_000, task_us=task_us)
        rows[task_us] = GEMMEvaluator(chip, disk_cache=False).evaluate_problem(problem).mapping.tile.tile_m  # type: ignore[union-attr]
    assert rows[0.0] < rows[100.0] == 256


def test_a_time_below_nothing_is_refused() -> None:
    with pytest.raises(ArchValidationError, match="task_us must be"):
        CHIP.with_(task_us=-1.0)
