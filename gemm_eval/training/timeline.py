"""`timeline`: what each pipeline stage does when, in a step played event by event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.training.schedule import StageTimes


class Task(NamedTuple):
    """A pass of a stage over a microbatch, from its start to its end; `chunk` is the virtual stage of the device."""

    stage: int
    is_forward: bool
    microbatch: int
    chunk: int
    start_us: float
    end_us: float


def timeline(
    stages: Sequence[StageTimes], num_microbatches: int, schedule: str = "1f1b", num_chunks: int = 1
) -> list[Task]:
    """Return all passes of a step; those of a stage in the order in which they run.

    Each starts as soon as the pass before it on the same microbatch, and the last one of its stage, have ended.

    Raises:
        InvalidOptionError: several chunks on one stage, or with microbatches that stages do not divide.
        UnsupportedError: zero bubble and DualPipe are known in closed form only.
    """
    if schedule not in ("1f1b", "interleaved"):
        raise UnsupportedError(f"{schedule} is known in closed form only; passes are played of 1f1b and interleaved")
    num, last = len(stages), len(stages) * num_chunks - 1
    if num_chunks > 1 and (num == 1 or num_microbatches % num):
        raise InvalidOptionError(
            f"several chunks take two or more stages and a multiple of them in microbatches, got {num} stages and "
            f"{num_microbatches} microbatches"
        )
    queues = [_order(stage, num, num_microbatches, num_chunks) for stage in range(num)]
    ends: dict[tuple[bool, int, int], float] = {}  # by direction, microbatch and virtual stage of all devices
    tasks: list[Task] = []
    free_us = [0.0] * num
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                is_forward, micro, chunk = queue[0]
                run = chunk * num + stage
                before = is_forward or run == last, micro, run - 1 if is_forward else min(run + 1, last)
                if before not in ends and not (is_forward and run == 0):
                    break
                of = stages[stage]
                us = (of.forward_us if is_forward else of.dgrad_us + of.wgrad_us) / num_chunks
                start_us = max(free_us[stage], ends.get(before, 0.0))
                free_us[stage] = ends[is_forward, micro, run] = start_us + us
                tasks.append(Task(stage, is_forward, micro, chunk, start_us, start_us + us))
                queue.pop(0)
    return tasks


def _order(stage: int, num_stages: int, num_microbatches: int, num_chunks: int) -> list[tuple[bool, int, int]]:
    """Return the passes of a stage in the order of Megatron-LM's interleaved 1F1B; with one chunk that of 1F1B."""
    total, after = num_microbatches * num_chunks, num_stages - stage - 1
    warm_up = min(total, after if num_chunks == 1 else 2 * after + (num_chunks - 1) * num_stages)

    def task(is_forward: bool, index: int) -> tuple[bool, int, int]:
        if num_chunks == 1:
            return is_forward, index, 0
        group, within = divmod(index, num_stages * num_chunks)
        chunk = within // num_stages
        chunk = chunk if is_forward else num_chunks - 1 - chunk
        return is_forward, group * num_stages + within % num_stages, chunk

    order = [task(True, index) for index in range(warm_up)]
    for index in range(warm_up, total):
        order += [task(True, index), task(False, index - warm_up)]
    return order + [task(False, index) for index in range(total - warm_up, total)]
