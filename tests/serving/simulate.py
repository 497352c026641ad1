"""Continuous batching played step by step: the slow truth of `gemm_eval.serving.batching`."""

import random
from collections import deque
from math import ceil
from statistics import fmean
from typing import Any, NamedTuple

from gemm_eval.serving import Load, Times


class Measured(NamedTuple):
    """Means over the requests of the second half of a run, in microseconds."""

    ttft_us: float
    tpot_us: float
    requests_per_us: float
    num_seqs: float


def simulate(load: Load, times: Times, *, num_requests: int, seed: int = 0, spread: float = 0.3) -> Measured:
    """Play a closed loop of clients: the engine picks its next step whenever one ends.

    Outputs have `load.num_steps` decode steps, more or less by up to the share `spread`, or exactly so many where they
    have fixed lengths: then the first requests are sent at once, where steps are not mixed, else one after the other. A
    client sends its next request as soon as the last one is finished; in mixed steps of fixed lengths, one a step. In
    pools, prompts are read by workers of their own, each those that wait in one step, and their caches are sent in
    pieces.
    """
    rng = random.Random(seed)

    def length() -> int:
        share = 1.0 if load.has_fixed_lengths else rng.uniform(1.0 - spread, 1.0 + spread)
        return max(1, round(load.num_steps * share))

    now_us = half_us = seqs_us = full_us = 0.0
    waiting: deque[tuple[float, int]] = deque()
    decoding: list[list[Any]] = []
    reading: deque[list[Any]] = deque()
    returning: deque[int] = deque()  # outputs of the next requests of clients
    per_step = max(1.0, min(load.concurrency, load.max_seqs) / load.num_steps)
    free_us, gone_us = ([0.0] * load.num_prefill_workers for _ in range(2))
    done: list[tuple[float, float, float, int]] = []  # sent, first token, finished, steps
    is_slow = load.has_fixed_lengths and load.is_mixed
    for index in range(round(load.concurrency)):
        if is_slow and index:
            returning.append(length())
            continue
        sent_us = 0.0 if load.has_fixed_lengths else index * times.decode_us(1.0) * load.num_steps / load.concurrency
        waiting.append((sent_us, length()))
    while len(done) < num_requests:
        chunks: list[list[Any]] = []
        if load.prefill_workers:
            if len(decoding) + len(reading) >= load.max_seqs:
                full_us = now_us
            while waiting and len(decoding) + len(reading) < load.max_seqs:
                worker = free_us.index(min(free_us))
                start_us = max(free_us[worker], waiting[0][0], full_us)
                if start_us > now_us:
                    break
                batch: list[tuple[float, int]] = []
                while (
                    waiting
                    and waiting[0][0] <= start_us
                    and len(batch) < min(int(load.chunks_per_step), load.max_seqs - len(decoding) - len(reading))
                ):
                    batch.append(waiting.popleft())
                read_us = load.num_chunks * times.chunk_us(len(batch), 0.0)
                free_us[worker] = start_us + read_us
                for piece in range(1, load.num_pieces + 1):  # caches follow, and those of the next step behind them
                    left_us = max(gone_us[worker], start_us + read_us * piece / load.num_pieces)
                    gone_us[worker] = left_us + len(batch) * max(load.send_us, load.receive_us) / load.num_pieces
                reading.extend([gone_us[worker], sent_us, steps] for sent_us, steps in batch)
            ready = [item for item in reading if item[0] <= now_us]
            reading = deque(item for item in reading if item[0] > now_us)
            decoding += [[sent_us, at_us, steps, steps] for at_us, sent_us, steps in ready]
            if not decoding:
                now_us = min([item[0] for item in reading] + [max(min(free_us), item[0]) for item in waiting])
                continue
            step_us = times.decode_us(len(decoding))
        else:
            if not decoding and not reading and waiting and waiting[0][0] > now_us:
                now_us = waiting[0][0]
            while waiting and waiting[0][0] <= now_us and len(decoding) + len(reading) < load.max_seqs:
                sent_us, steps = waiting.popleft()
                reading.append([load.num_chunks, sent_us, steps])
            capacity = load.chunks_per_step
            for item in reading:
                if capacity < 1.0:
                    break
                chunks.append(item)
                capacity -= 1.0
            step_us = times.decode_us(len(decoding)) if decoding and (load.is_mixed or not chunks) else 0.0
            if chunks:
                step_us += times.chunk_us(len(chunks), len(decoding) if load.is_mixed else 0.0)
                if load.is_mixed and not decoding:
                    step_us += times.decode_us(1.0)
        started_us, now_us = now_us, now_us + step_us
        if len(done) > num_requests // 2:
            seqs_us += step_us * len(decoding)
        else:
            half_us = now_us
        if load.prefill_workers or load.is_mixed or not chunks:
            for item in decoding:
                item[2] -= 1
        for sent_us, first_us, _left, steps in [item for item in decoding if item[2] == 0]:
            done.append((sent_us, first_us, now_us, steps))
            returning.append(length())
        # clients handle the ends of a step one by one: of fixed lengths this takes apart what ended together
        for _ in range(min(len(returning), ceil(per_step)) if is_slow else len(returning)):
            waiting.append((max(now_us, started_us) + 1e-3, returning.popleft()))
        decoding = [item for item in decoding if item[2]]
        for item in chunks:
            item[0] -= 1
        decoding += [[sent_us, now_us, steps, steps] for left, sent_us, steps in chunks if left == 0]
        reading = deque(item for item in reading if item[0] > 0) if not load.prefill_workers else reading
    rest = done[num_requests // 2 :]
    span_us = rest[-1][2] - rest[0][2]
    return Measured(
        fmean(first - sent for sent, first, _, _ in rest),
        fmean((end - first) / steps for _, first, end, steps in rest),
        len(done) / now_us if load.has_fixed_lengths else len(rest) / span_us, seqs_us / (now_us - half_us),
    )  # fmt: skip
