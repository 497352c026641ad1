"""Pipeline parallelism over the chunks of a prompt: fill, steady state and drain."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["pipeline_us"]


def pipeline_us(chunk_us: Sequence[Sequence[float]]) -> float:
    """Return the time from the start of the first chunk on the first stage to the end of the last on the last stage.

    A stage works on one chunk at a time, in order, and a chunk begins on a stage when the stage before is done with it
    (a permutation flow shop):

        finish[i][s] = max(finish[i - 1][s], finish[i][s - 1]) + time[i][s]

    Args:
        chunk_us: [num_chunks, num_stages], time of each chunk on each stage.
    """
    finish_us = [0.0] * len(chunk_us[0])
    for stage_us in chunk_us:
        done_us = 0.0  # with this chunk, on the stage before
        for stage, us in enumerate(stage_us):
            done_us = finish_us[stage] = max(finish_us[stage], done_us) + us
    return finish_us[-1]
