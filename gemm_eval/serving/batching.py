"""Continuous batching in closed form: the mix of steps in steady state, and how long a request waits.

An engine runs one step after the other. Each step gives every sequence in decode a token. Prompts are read in chunks of
at most `chunk_tokens`: in the same steps (mixed steps: vLLM, TensorRT-LLM), or in steps of their own, which go first
(SGLang's default). Clients keep a fixed number of requests in flight. SERVING.md derives the formulas;
`tests/serving/simulate.py` plays the same rules event by event.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

_TOLERANCE = 1e-6
_P99_FRAC = 0.01  # of requests that wait longer than the 99th percentile
_P99_DEVIATIONS = 2.33  # standard deviations above the mean at the 99th percentile of a normal distribution
_MAX_BUSY_FRAC = 0.999  # of the prompts that an engine can read: beyond, the queue has no end
_FULL_MARGIN = 0.05  # of the time of a prompt, by which a wait is longer than the queue where requests find no room


class Times(NamedTuple):
    """Times of the steps of an engine, in microseconds.

    Attributes:
        decode_us: time in which each of so many sequences gains its next tokens.
        chunk_us: time that so many chunks of prompts, beside so many sequences in decode, add to a step; of steps of
            their own the whole time.
    """

    decode_us: Callable[[float], float]
    chunk_us: Callable[[float, float], float]


class Load(NamedTuple):
    """The requests of one scheduler: of a replica, or of one group of data-parallel attention.

    Attributes:
        concurrency: requests in flight.
        num_steps: decode steps of a request after its first token.
        num_chunks: steps that its prompt takes.
        chunks_per_step: chunks of such prompts that a step holds.
        is_mixed: chunks run beside decodes; else in steps of their own.
        max_seqs: most sequences in decode, by memory or by the engine's limit.
        has_fixed_lengths: all outputs are equally long, so that requests keep the order in which they began.
        first_frac: share of requests that are sent at once, at the start of a benchmark; 0: steady state alone.
        prefill_workers: workers of a pool of their own that read prompts, for each worker that decodes; 0: no pools.
        num_prefill_workers: workers of that pool in all.
        send_us, receive_us: times in which the cache of a prompt leaves the worker that reads it, and arrives at the
            one that decodes.
        num_pieces: pieces in which it is sent, each one when it is read; 1: the whole, after the last chunk.
    """

    concurrency: float
    num_steps: float
    num_chunks: int
    chunks_per_step: float
    is_mixed: bool
    max_seqs: float
    has_fixed_lengths: bool = False
    first_frac: float = 0.0
    prefill_workers: float = 0.0
    num_prefill_workers: int = 1
    send_us: float = 0.0
    receive_us: float = 0.0
    num_pieces: int = 1

    def transfer_left_us(self, read_us: float) -> float:
        """Return how long after the last chunk the cache of a prompt is there, which was read in `read_us`."""
        transfer_us = max(self.send_us, self.receive_us)
        last_frac = 1.0 / self.num_pieces
        return max(last_frac * transfer_us, transfer_us - (1.0 - last_frac) * read_us)


class SteadyState(NamedTuple):
    """The steady state of a scheduler, times in microseconds.

    Attributes:
        num_seqs: mean number of sequences in decode.
        step_us: mean time between two tokens (with speculation: two steps) of a sequence.
        long_step_us: the same where a chunk of a prompt comes in between.
        prompt_frac: share of decode steps with such a chunk.
        prompt_us: time from the start of a prompt to its first token.
        wait_us, wait_p99_us: mean and 99th percentile of the time before it starts.
        requests_per_us: throughput.
        is_full: prompts come faster than they are read, or memory holds no more sequences: requests queue.
    """

    num_seqs: float
    step_us: float
    long_step_us: float
    prompt_frac: float
    prompt_us: float
    wait_us: float
    wait_p99_us: float
    requests_per_us: float
    is_full: bool

    @property
    def step_p99_us(self) -> float:
        """99th percentile of the time between two tokens: with a chunk where more than 1% of steps have one."""
        return self.long_step_us if self.prompt_frac > _P99_FRAC else self.step_us


class _Mix(NamedTuple):
    """The mix of steps with a given number of sequences in decode.

    Attributes:
        step_us, long_step_us, prompt_frac, prompt_us: as of `SteadyState`.
        running_us: mean rest of the step that a new request finds.
        queue_us, queue_p99_us: mean and 99th percentile of the time that prompts before it take.
    """

    step_us: float
    long_step_us: float
    prompt_frac: float
    prompt_us: float
    running_us: float
    queue_us: float
    queue_p99_us: float


def _mix(load: Load, times: Times, num_seqs: float) -> _Mix | None:
    """Return the mix of steps where as many prompts arrive as requests are finished; None: more than can be read.

    Requests are finished, and new ones arrive, at the ends of decode steps. With `a` chunks a step in the mean, at
    random, a step has one or more with probability 1 - exp(-a), and with a higher one where they do not fit into so few
    steps. A request meets the prompts of the others, not its own.
    """
    decode_us = times.decode_us(num_seqs)
    others_frac = 1.0 - 1.0 / min(load.concurrency, load.max_seqs)
    arrivals = num_seqs / load.num_steps * load.num_chunks
    if load.prefill_workers:
        return _pools_mix(load, times, decode_us, num_seqs / (load.num_steps * decode_us), others_frac)
    busy_frac = arrivals / load.chunks_per_step
    if load.is_mixed and busy_frac > _MAX_BUSY_FRAC:
        return None
    prompt_frac = max(-math.expm1(-arrivals), busy_frac)
    chunk_us = times.chunk_us(arrivals / prompt_frac, num_seqs)
    prompt_frac *= others_frac
    step_us, long_step_us = decode_us + prompt_frac * chunk_us, decode_us + chunk_us
    if load.is_mixed:
        prompt_us = load.num_chunks * long_step_us
        queue = _queue_us(others_frac * busy_frac, prompt_us)
        return _Mix(step_us, long_step_us, prompt_frac, prompt_us, others_frac * step_us, *queue)
    # no request is finished before all prompts are read: one waits for half of those that came with it
    batch_us = others_frac * busy_frac * chunk_us
    queue = 0.5 * batch_us, batch_us * (1.0 + _P99_DEVIATIONS / math.sqrt(arrivals))
    return _Mix(step_us, long_step_us, prompt_frac, load.num_chunks * chunk_us, others_frac * decode_us, *queue)


def _pools_mix(load: Load, times: Times, decode_us: float, requests_per_us: float, others_frac: float) -> _Mix | None:
    """Return the mix of steps where a pool of its own reads the prompts: at each step of a worker those that wait.

    The time of a step is taken as straight between one prompt and as many as it holds. A cache is sent while the next
    step is read.
    """
    most = max(1.0, load.chunks_per_step / load.num_chunks)
    one_us, all_us = (load.num_chunks * times.chunk_us(num, 0.0) for num in (1.0, most))
    one_us, all_us = max(one_us, load.send_us), max(all_us, most * load.send_us)
    rate = requests_per_us / load.prefill_workers
    full_frac = max(rate * all_us / most, requests_per_us * load.receive_us)
    if full_frac > _MAX_BUSY_FRAC:
        return None
    slope_us = (all_us - one_us) / (most - 1.0) if most > 1.0 else 0.0
    together = min(most, max(1.0, rate * (one_us - slope_us) / (1.0 - rate * slope_us)))
    service_us = one_us + slope_us * (together - 1.0)
    busy_frac = min(1.0, rate * service_us / together)
    running_us = others_frac * busy_frac * service_us / (2.0 * load.num_prefill_workers)
    queue_us, p99_us = _queue_us(others_frac * full_frac, all_us / most / load.num_prefill_workers)
    read_us = load.num_chunks * times.chunk_us(together, 0.0)
    prompt_us = read_us + load.transfer_left_us(read_us)
    return _Mix(decode_us, decode_us, 0.0, prompt_us, running_us, max(0.0, queue_us - running_us), p99_us)


def _fixed_mix(load: Load, times: Times, num_seqs: float) -> _Mix | None:
    """Return the mix of steps where all outputs are equally long, so that requests keep the order in which they began.

    Where prompts have steps of their own, prompts that are read together come together again. Mixed steps take them
    apart: of requests that end in one step the first is read in the next one, while the others arrive.
    """
    most = min(load.concurrency, load.max_seqs)
    together = min(load.chunks_per_step, most * load.num_chunks)
    num_batches = most * load.num_chunks / together
    if not load.is_mixed:  # all prompts are read before the first decode step, and all requests end with the last
        decode_us, chunk_us = times.decode_us(most), times.chunk_us(together, most)
        prompt_us = load.num_chunks * chunk_us
        wait_us = max(0.0, num_batches * chunk_us - prompt_us)
        step_us = decode_us + 0.5 * wait_us / load.num_steps
        return _Mix(step_us, decode_us + chunk_us, num_batches / load.num_steps, prompt_us, 0.0, 0.5 * wait_us, wait_us)
    arrivals = num_seqs * load.num_chunks / load.num_steps
    if arrivals > _MAX_BUSY_FRAC * together:
        return None
    together = min(together, max(1.0, arrivals))
    num_batches, prompt_frac = most * load.num_chunks / together, arrivals / together
    decode_us, chunk_us = times.decode_us(num_seqs), times.chunk_us(together, num_seqs)
    others_frac, long_step_us = 1.0 - 1.0 / num_batches, decode_us + chunk_us
    prompt_frac *= others_frac
    # the step that a request finds reads the prompts that came before it
    running_us = others_frac * long_step_us
    return _Mix(
        decode_us + prompt_frac * chunk_us, long_step_us, prompt_frac, load.num_chunks * long_step_us, running_us, 0.0,
        0.0,
    )  # fmt: skip


def _queue_us(busy_frac: float, service_us: float) -> tuple[float, float]:
    """Return mean and 99th percentile of the wait in a queue of random arrivals and equal service (M/D/1).

    The tail is taken as exponential.
    """
    scale_us = service_us / (2.0 * (1.0 - busy_frac))
    return busy_frac * scale_us, scale_us * math.log(max(1.0, busy_frac / _P99_FRAC))


def steady_state(load: Load, times: Times) -> SteadyState:
    """Return the steady state of a closed loop, in which a request waits, is read, and is decoded, again and again.

    Little's law gives the sequences in decode: they are to the concurrency as a request's time in decode is to its
    whole time. Where memory or full steps allow fewer, the other requests wait.
    """
    is_fixed = load.has_fixed_lengths and not load.prefill_workers
    mix_at = _fixed_mix if is_fixed else _mix
    most = num_seqs = min(load.concurrency, load.max_seqs)
    # in lockstep those that do not fit are not read before all others have ended
    in_flight = most if is_fixed and not load.is_mixed else load.concurrency

    def mix_of(num_seqs: float) -> _Mix | None:
        """Return the mix of steps; None: more sequences than their share of the concurrency."""
        mix = mix_at(load, times, num_seqs)
        if mix is None:
            return None
        decode_us = load.num_steps * mix.step_us
        request_us = mix.running_us + mix.queue_us + mix.prompt_us + decode_us
        return mix if num_seqs * request_us <= in_flight * decode_us else None

    low, mix = 0.0, mix_of(most)
    high = low if mix else most
    while mix is None or high - low > _TOLERANCE * most:
        num_seqs = 0.5 * (low + high)
        better = mix_of(num_seqs)
        if better is None:
            high = num_seqs
        else:
            low, mix = num_seqs, better
    num_seqs = low or most
    decode_us = load.num_steps * mix.step_us
    wait_us = load.concurrency * decode_us / num_seqs - decode_us - mix.prompt_us
    is_full = wait_us > mix.running_us + mix.queue_us + _FULL_MARGIN * mix.prompt_us
    p99_us = mix.long_step_us + (wait_us if is_full else mix.queue_p99_us)
    if load.first_frac:
        burst_us = _burst_us(load, times, num_seqs)
        wait_us += load.first_frac * max(0.0, 0.5 * burst_us - wait_us)
        p99_us = max(p99_us, burst_us * (1.0 - _P99_FRAC / load.first_frac))
    return SteadyState(
        num_seqs, mix.step_us, mix.long_step_us, mix.prompt_frac, mix.prompt_us, wait_us, max(wait_us, p99_us),
        num_seqs / decode_us, is_full,
    )  # fmt: skip


def _burst_us(load: Load, times: Times, num_seqs: float) -> float:
    """Return the time in which all requests in flight are read that were sent at once."""
    chunks = load.concurrency * load.num_chunks
    per_step = min(chunks, load.chunks_per_step)
    decode_us = times.decode_us(num_seqs) if load.is_mixed else 0.0
    num_decodes = 0.0 if load.prefill_workers else num_seqs
    return chunks / per_step * (times.chunk_us(per_step, num_decodes) + decode_us) / (load.prefill_workers or 1.0)
