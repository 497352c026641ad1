"""`timeline`: what each pipeline stage does when, in a step played event by event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gemm_eval.errors import UnsupportedError
from gemm_eval.training.schedule import StageTimes


class Task(NamedTuple):
    """Work of a stage on a microbatch, with its start and end in us.

    `name`: ``forward``, ``backward`` or ``weights`` (weight gradients, where a schedule has them apart). `chunk` is the
    virtual stage, counted on the device.
    """

    stage: int
    name: str
    microbatch: int
    chunk: int
    start_us: float
    end_us: float


def timeline(
    stages: Sequence[StageTimes], num_microbatches: int, schedule: str = "1f1b", num_chunks: int = 1
) -> list[Task]:
    """Return the tasks of all stages in a step, those of a stage in the order in which they run.

    Each stage starts a task as soon as the one before it on the same microbatch, and its own last one, have ended.

    Raises:
        UnsupportedError: there is no such order of DualPipe here.
    """
    if schedule == "dualpipe":
        raise UnsupportedError("DualPipe is known in closed form only; its order of tasks is not")
    if schedule == "zero-bubble":
        return _zero_bubble(stages, num_microbatches)
    last = len(stages) * num_chunks - 1
    queues = [_order(stage, len(stages), num_microbatches, num_chunks) for stage in range(len(stages))]
    ends: dict[tuple[str, int, int], float] = {}  # by task, microbatch and virtual stage of all devices
    tasks: list[Task] = []
    free_us = [0.0] * len(stages)
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                name, micro, chunk = queue[0]
                run = chunk * len(stages) + stage
                before = ("forward", micro, run - 1 if name == "forward" else run)
                if name == "backward" and run < last:
                    before = ("backward", micro, run + 1)
                if before not in ends and (name, run) != ("forward", 0):
                    break
                of = stages[stage]
                us = (of.forward_us if name == "forward" else of.dgrad_us + of.wgrad_us) / num_chunks
                start_us = max(free_us[stage], ends.get(before, 0.0))
                free_us[stage] = ends[name, micro, run] = start_us + us
                tasks.append(Task(stage, name, micro, chunk, start_us, start_us + us))
                queue.pop(0)
    return tasks


def _order(stage: int, num_stages: int, num_microbatches: int, num_chunks: int) -> list[tuple[str, int, int]]:
    """Return the tasks of a stage in the order of Megatron-LM's interleaved 1F1B; with one chunk that of 1F1B."""
    total, after = num_microbatches * num_chunks, num_stages - stage - 1
    warm_up = min(total, after if num_chunks == 1 else 2 * after + (num_chunks - 1) * num_stages)

    def task(name: str, index: int) -> tuple[str, int, int]:
        if num_chunks == 1:
            return name, index, 0
        group, within = divmod(index, num_stages * num_chunks)
        chunk = within // num_stages
        chunk = chunk if name == "forward" else num_chunks - 1 - chunk
        return name, group * num_stages + within % num_stages, chunk

    order = [task("forward", index) for index in range(warm_up)]
    for index in range(warm_up, total):
        order += [task("forward", index), task("backward", index - warm_up)]
    return order + [task("backward", index) for index in range(total - warm_up, total)]


def _zero_bubble(stages: Sequence[StageTimes], num_microbatches: int) -> list[Task]:
    """Play ZB-H1: backward first, then forward as far as 1F1B's memory goes, else weight gradients."""
    num, names = len(stages), ("backward", "forward", "weights")
    ready: list[dict[str, list[float]]] = [{name: [] for name in names} for _ in stages]
    ready[0]["forward"] = [0.0] * num_microbatches
    free_us, in_flight, tasks = [0.0] * num, [0] * num, list[Task]()
    counts = [dict.fromkeys(names, 0) for _ in stages]
    while len(tasks) < 3 * num * num_microbatches:
        options = [
            (max(free_us[stage], ready[stage][name][counts[stage][name]]), rank, stage)
            for stage in range(num)
            for rank, name in enumerate(names)
            if counts[stage][name] < len(ready[stage][name])
            and not (name == "forward" and in_flight[stage] >= num - stage)
        ]
        start_us, rank, stage = min(options)
        name = names[rank]
        end_us = free_us[stage] = (
            start_us + (stages[stage].dgrad_us, stages[stage].forward_us, stages[stage].wgrad_us)[rank]
        )
        tasks.append(Task(stage, name, counts[stage][name], 0, start_us, end_us))
        counts[stage][name] += 1
        if name == "forward":
            in_flight[stage] += 1
            after, where = (name, stage + 1) if stage < num - 1 else ("backward", stage)
            ready[where][after].append(end_us)
        elif name == "backward":
            in_flight[stage] -= 1
            ready[stage]["weights"].append(end_us)
            if stage:
                ready[stage - 1]["backward"].append(end_us)
    return tasks
