"""Pipeline schedules: layers of each stage, time through all stages, microbatches in flight, and passes one by one."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from gemm_eval.errors import InvalidOptionError, UnsupportedError

SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "dualpipe")
"""Schedules by the names of their papers.

1F1B and interleaved: Narayanan et al. 2021 (https://arxiv.org/abs/2104.04473); zero bubble: ZB-H1, which keeps as many
activations as 1F1B (Qi et al. 2023, https://arxiv.org/abs/2401.10241); DualPipe: DeepSeek-V3 (2024), section 3.2.1
(https://arxiv.org/abs/2412.19437) and its code (https://github.com/deepseek-ai/DualPipe).
"""

_PLAYED_ROUNDS = 4  # microbatches of DualPipe that are played, over stages; each further one adds a pair of passes


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


def check_dualpipe(num_stages: int, num_microbatches: int) -> None:
    """Raise `InvalidOptionError` for numbers that DualPipe's order is not defined for."""
    if num_stages % 2 or num_microbatches % 2 or num_microbatches < 2 * num_stages:
        raise InvalidOptionError(
            "dualpipe takes an even number of stages, and of microbatches at least twice as many, got "
            f"{num_stages} and {num_microbatches}"
        )


def schedule_us(
    stages: Sequence[StageTimes], num_microbatches: int, schedule: str = "1f1b", num_chunks: int = 1,
    pairs_us: Sequence[float] | None = None,
) -> float:  # fmt: skip
    """Return the time of all microbatches through all stages, in microseconds.

    The slowest stage works on every microbatch; before its first one and after its last one it waits for the others:

        1f1b           F + B + W of each other stage
        interleaved    the same over the virtual stages of each
        zero-bubble    F + B - W of each other stage: weight gradients fill the rest

    F, B and W are the `StageTimes`. With equal stages these are the published formulas. 1F1B takes at most so long
    where the passes of all stages are in proportion, and hardly longer else. DualPipe is played pass by pass; of equal
    stages its bubble is (p / 2 - 1) (F&B + B - 2 W) beside p + 1 microbatches whose passes are alone, as published.

    `pairs_us` are times of a forward pass of each stage beside a backward pass of it (F&B); None: one after the other.

    Raises:
        InvalidOptionError: DualPipe, and an odd number of stages or microbatches, or fewer than two for each stage.
    """
    if schedule == "dualpipe":
        check_dualpipe(len(stages), num_microbatches)
        return _dualpipe_us(stages, num_microbatches, pairs_us or [stage.total_us for stage in stages])
    slowest = max(range(len(stages)), key=lambda index: stages[index].total_us)
    busy_us = num_microbatches * stages[slowest].total_us
    others = [stage for index, stage in enumerate(stages) if index != slowest]
    if schedule == "zero-bubble":
        return busy_us + sum(max(0.0, f + b - w) for f, b, w in others)
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
        UnsupportedError: another schedule.
    """
    if schedule not in ("1f1b", "interleaved"):
        raise UnsupportedError(f"timelines are of 1f1b and interleaved, got {schedule}")
    num = len(stages)
    if num_chunks > 1 and (num == 1 or num_microbatches % num):
        raise InvalidOptionError(
            f"several chunks take two or more stages and a multiple of them in microbatches, got {num} stages and "
            f"{num_microbatches} microbatches"
        )
    queues = [deque(_order(stage, stages, num_microbatches, num_chunks)) for stage in range(num)]
    return list(_play(queues, num * num_chunks - 1))


_Pass = tuple[bool, int, int, int]  # forward or not, microbatch, chunk, virtual stage in the order of its microbatch
_Item = tuple[float, tuple[_Pass, ...]]  # time of passes that run as one
_PUT_OFF = False, -1, 0, -1  # weight gradients that DualPipe put off: they wait for nothing


def _play(queues: Sequence[deque[_Item]], last: int) -> Iterator[Task]:
    """Yield all passes, each as early as its device and the pass before it allow; `last` is the last virtual stage."""
    ends: dict[tuple[bool, int, int], float] = {}
    free_us = [0.0] * len(queues)
    while any(queues):
        for device, queue in enumerate(queues):
            while queue:
                us, passes = queue[0]
                before = [
                    (True, micro, run - 1) if is_forward else (run == last, micro, min(run + 1, last))
                    for is_forward, micro, _, run in passes if run >= 0 and (run or not is_forward)
                ]  # fmt: skip
                if any(key not in ends for key in before):
                    break
                start_us = max([free_us[device], *(ends[key] for key in before)])
                free_us[device] = start_us + us
                for is_forward, micro, chunk, run in passes:
                    ends[is_forward, micro, run] = free_us[device]
                    yield Task(device, is_forward, micro, chunk, start_us, free_us[device])
                queue.popleft()


def _order(stage: int, stages: Sequence[StageTimes], num_microbatches: int, num_chunks: int) -> Iterator[_Item]:
    """Yield the passes of a stage in the order of Megatron-LM's interleaved 1F1B; with one chunk that of 1F1B."""
    num, total = len(stages), num_microbatches * num_chunks
    after, (forward_us, dgrad_us, wgrad_us) = num - stage - 1, stages[stage]
    warm_up = min(total, after if num_chunks == 1 else 2 * after + (num_chunks - 1) * num)
    for index in range(total + warm_up):
        for is_forward, at in ((True, index), (False, index - warm_up)):
            if 0 <= at < total:
                group, within = divmod(at, num * num_chunks)
                chunk = within // num if is_forward else num_chunks - 1 - within // num
                us = (forward_us if is_forward else dgrad_us + wgrad_us) / num_chunks
                yield us, ((is_forward, group * num + within % num, chunk, chunk * num + stage),)


def _dualpipe_us(stages: Sequence[StageTimes], num_microbatches: int, pairs_us: Sequence[float]) -> float:
    """Return the time of a step of DualPipe: of its first microbatches played, of the others a pair of passes each."""
    played = min(num_microbatches, _PLAYED_ROUNDS * len(stages))
    queues = [deque(_dualpipe_order(device, stages, pairs_us, played)) for device in range(len(stages))]
    played_us = max(task.end_us for task in _play(queues, len(stages) - 1))
    return played_us + (num_microbatches - played) * max(map(sum, zip(pairs_us, reversed(pairs_us), strict=True))) / 2


def _dualpipe_order(
    device: int, stages: Sequence[StageTimes], pairs_us: Sequence[float], num_microbatches: int
) -> Iterator[_Item]:
    """Yield the passes of a device in the order of DualPipe's code (its `step`, step 1 to 8).

    In words: F0 is a forward pass of the direction whose microbatches enter in this half of the devices, B1 a backward
    pass of the other, b one without weight gradients, which a W then has; two passes in a word run side by side.
    """
    num, half, each = len(stages), len(stages) // 2, min(device + 1, len(stages) - device)
    rest = half - each
    pairs, ends = ["F0B1", "F1B0"] * (num_microbatches // 2 - num + each), ["B1", "B0"] * each
    if rest == 0:
        pairs[:1] = ["F0", "B1"]
    words = ["F0"] * 2 * rest + ["F0", "F1"] * each + ["b1", "W", "F1"] * rest + pairs + ["B1", "F1B0"] * rest
    words += ends[:each] + [word.lower() for word in ends[each:]] + ["W", "b0"] * rest + ["W"] * each
    done, put_off_us = Counter[tuple[bool, int]](), deque[float]()
    for word in words:
        us, passes = 0.0, []
        for letter, digit in zip(word[::2], word[1::2], strict=False):
            is_forward, way = letter == "F", int(digit) ^ (device >= half)
            run = num - 1 - device if way else device
            passes.append((is_forward, 2 * done[is_forward, way] + way, way, run))
            done[is_forward, way] += 1
            forward_us, dgrad_us, wgrad_us = stages[run]
            alone_us = {"F": forward_us, "B": dgrad_us + wgrad_us, "b": dgrad_us}[letter]
            us += pairs_us[run] / 2 if len(word) > 2 else alone_us
            if letter == "b":
                put_off_us.append(wgrad_us)
        yield (us, tuple(passes)) if passes else (put_off_us.popleft(), (_PUT_OFF,))
