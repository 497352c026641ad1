"""Pipeline schedules in closed form: layers of each stage, time through all stages, and microbatches in flight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "dualpipe")
"""Schedules by the names of their papers.

1F1B and interleaved: Narayanan et al. 2021 (https://arxiv.org/abs/2104.04473); zero bubble: ZB-H1, which keeps as many
activations as 1F1B (Qi et al. 2023, https://arxiv.org/abs/2401.10241); DualPipe: DeepSeek-V3 (2024), table 2
(https://arxiv.org/abs/2412.19437).
"""


class StageTimes(NamedTuple):
    """Times of one microbatch on a stage in us: forward, backward without weight gradients, and weight gradients."""

    forward_us: float
    dgrad_us: float
    wgrad_us: float

    @property
    def total_us(self) -> float:
        """Forward and backward together."""
        return sum(self)


@lru_cache(maxsize=4096)
def stage_chunks(num_layers: int, num_stages: int, num_chunks: int = 1) -> tuple[tuple[range, ...], ...]:
    """Return the layers of each stage, in `num_chunks` runs (virtual stages) each.

    Runs are as long as they can be alike. The first and the last ones are the shorter ones, as they come with the
    embedding and the head: Llama 3 405B has 126 layers on 16 stages.
    """
    num = num_stages * num_chunks
    each, more = divmod(num_layers, num)
    middle = (num - more + 1) // 2  # runs before the longer ones
    lengths = [each + (middle <= index < middle + more) for index in range(num)]
    starts = [sum(lengths[:index]) for index in range(num)]
    runs = [range(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    return tuple(tuple(runs[stage::num_stages]) for stage in range(num_stages))


def schedule_us(
    stages: Sequence[StageTimes], num_microbatches: int, schedule: str = "1f1b", num_chunks: int = 1
) -> float:
    """Return the time of all microbatches through all stages, in microseconds.

    The slowest stage works on every microbatch; before its first one and after its last one it waits for the others:

        1f1b           F + B + W of each other stage
        interleaved    the same over the virtual stages of each
        zero-bubble    F + B - W of each other stage: weight gradients fill the rest
        dualpipe       F + 2B - W of half of the stages but one, in the mean

    F, B and W are the `StageTimes`. With equal stages these are the published formulas. 1F1B takes at most so long
    where the passes of all stages are in proportion, and hardly longer else.
    """
    slowest = max(range(len(stages)), key=lambda index: stages[index].total_us)
    busy_us = num_microbatches * stages[slowest].total_us
    others = [stage for index, stage in enumerate(stages) if index != slowest]
    if schedule == "zero-bubble":
        return busy_us + sum(max(0.0, f + b - w) for f, b, w in others)
    if schedule == "dualpipe":
        mean_us = sum(max(0.0, f + 2 * b - w) for f, b, w in stages) / len(stages)
        return busy_us + max(0.0, len(stages) / 2 - 1) * mean_us
    return busy_us + sum(stage.total_us for stage in others) / (num_chunks if schedule == "interleaved" else 1)


def num_in_flight(
    stage: int, num_stages: int, num_microbatches: int, schedule: str = "1f1b", num_chunks: int = 1
) -> float:
    """Return how many microbatches' activations of a whole stage it holds at most, at its fullest.

    Interleaved: Megatron-LM's warm-up of virtual stages, and the one at work. DualPipe: one more than there are stages.
    """
    if schedule == "dualpipe":
        return float(min(num_microbatches, num_stages + 1))
    if schedule == "interleaved" and num_chunks > 1:
        runs = 2 * (num_stages - stage - 1) + (num_chunks - 1) * num_stages + 1
        return min(num_microbatches * num_chunks, runs) / num_chunks
    return float(min(num_microbatches, num_stages - stage))
