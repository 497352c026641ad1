"""A simulator of pipeline schedules, event by event: what the closed forms of `gemm_eval.training` are held to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gemm_eval.training import StageTimes


class Task(NamedTuple):
    kind: str  # "F", "B": backward, weight gradients included
    micro: int
    run: int  # virtual stage, counted over all devices


def device_tasks(stage: int, num_stages: int, num_micro: int, num_chunks: int) -> list[Task]:
    """The order of Megatron-LM's interleaved 1F1B; with one chunk that of 1F1B."""
    total = num_micro * num_chunks
    warm_up = min(total, num_stages - stage - 1)
    if num_chunks > 1:
        warm_up = min(total, 2 * (num_stages - stage - 1) + (num_chunks - 1) * num_stages)

    def task(kind: str, index: int) -> Task:
        if num_chunks == 1:
            return Task(kind, index, stage)
        group, place = divmod(index, num_stages * num_chunks)
        chunk = place // num_stages
        chunk = chunk if kind == "F" else num_chunks - 1 - chunk
        return Task(kind, group * num_stages + place % num_stages, chunk * num_stages + stage)

    tasks = [task("F", index) for index in range(warm_up)]
    for index in range(warm_up, total):
        tasks += [task("F", index), task("B", index - warm_up)]
    return tasks + [task("B", index) for index in range(total - warm_up, total)]


def simulate(times: Sequence[StageTimes], num_micro: int, num_chunks: int = 1) -> tuple[float, list[float]]:
    """The time of the last event, and the most microbatches that each device holds, in whole stages."""
    num_stages = len(times)
    last = num_stages * num_chunks - 1
    queues = [device_tasks(stage, num_stages, num_micro, num_chunks) for stage in range(num_stages)]
    done: dict[Task, float] = {}
    free, held, most = [0.0] * num_stages, [0] * num_stages, [0] * num_stages
    while any(queues):
        moved = False
        for stage, queue in enumerate(queues):
            while queue:
                kind, micro, run = task = queue[0]
                before = Task("F", micro, run - 1 if kind == "F" else run)
                if kind == "B" and run < last:
                    before = Task("B", micro, run + 1)
                if not (kind == "F" and run == 0) and before not in done:
                    break
                of = times[stage]
                us = of.forward_us if kind == "F" else of.dgrad_us + of.wgrad_us
                free[stage] = done[task] = max(free[stage], done.get(before, 0.0)) + us / num_chunks
                held[stage] += 1 if kind == "F" else -1
                most[stage] = max(most[stage], held[stage])
                queue.pop(0)
                moved = True
        assert moved, "a schedule that waits for itself"
    return max(free), [num / num_chunks for num in most]


def simulate_zero_bubble(times: StageTimes, num_stages: int, num_micro: int) -> float:
    """ZB-H1 of equal stages: backward, then forward as far as 1F1B's memory goes, else weight gradients."""
    forward_us, dgrad_us, wgrad_us = times
    ready: list[dict[str, list[float]]] = [{"F": [], "B": [], "W": []} for _ in range(num_stages)]
    ready[0]["F"] = [0.0] * num_micro
    free, started = [0.0] * num_stages, [0] * num_stages  # forwards less dgrads
    counts = [dict.fromkeys("FBW", 0) for _ in range(num_stages)]
    while any(count["W"] < num_micro for count in counts):
        # the next event anywhere: of each device what it can start first, by priority at that time
        options = []
        for stage in range(num_stages):
            count = counts[stage]
            for rank, kind in enumerate("BFW"):
                if kind == "F" and started[stage] >= num_stages - stage:
                    continue
                if count[kind] < len(ready[stage][kind]):
                    options.append((max(free[stage], ready[stage][kind][count[kind]]), rank, stage, kind))
        at_us, _, stage, kind = min(options)
        us = {"F": forward_us, "B": dgrad_us, "W": wgrad_us}[kind]
        end_us = free[stage] = at_us + us
        counts[stage][kind] += 1
        if kind == "F":
            started[stage] += 1
            follower, where = ("F", stage + 1) if stage < num_stages - 1 else ("B", stage)
            ready[where][follower].append(end_us)
        elif kind == "B":
            started[stage] -= 1
            ready[stage]["W"].append(end_us)
            if stage:
                ready[stage - 1]["B"].append(end_us)
    return max(free)
