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
_MAX_BUSY_FRAC = 0.999  # of the prompts that an engine can read: beyond, the queue has no end
_FULL_MARGIN = 0.05


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
        first_frac: share of requests that are sent at once, at the start of a benchmark; 0: steady state alone.
        prefill_workers: workers of a pool of their own that read prompts, for each worker that decodes; 0: no pools.
        num_prefill_workers: workers of that pool in all.
        transfer_us: time in which the cache of a prompt goes from one pool to the other.
    """

    concurrency: float
    num_steps: float
    num_chunks: int
    chunks_per_step: float
    is_mixed: bool
    max_seqs: float
    first_frac: float = 0.0
    prefill_workers: float = 0.0
    num_prefill_workers: int = 1
    transfer_us: float = 0.0


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


class _Mix(NamedTuple):
    """The mix of steps with a given number of sequences in decode.

    Attributes:
        step_us, long_step_us, prompt_frac, prompt_us: as of `SteadyState`.
        running_us: mean rest of the step that a new request finds.
        service_us: time that a prompt keeps its worker, over the workers.
        busy_frac: utilization of what reads prompts.
    """

    step_us: float
    long_step_us: float
    prompt_frac: float
    prompt_us: float
    running_us: float
    service_us: float
    busy_frac: float

    @property
    def queue_us(self) -> float:
        """Mean wait for the prompts before: random arrivals, equal service (M/D/1)."""
        return self.busy_frac / (2.0 * (1.0 - self.busy_frac)) * self.service_us

    @property
    def queue_p99_us(self) -> float:
        """99th percentile of this wait, whose tail is taken as exponential."""
        tail = math.log(max(1.0, self.busy_frac / _P99_FRAC))
        return self.service_us * tail / (2.0 * (1.0 - self.busy_frac))


def _mix(load: Load, times: Times, num_seqs: float) -> _Mix | None:
    """Return the mix of steps where as many prompts arrive, at random times, as requests are finished; None: too many.

    With `a` chunks a step in the mean, a step has one or more with probability 1 - exp(-a), and with a higher one where
    they do not fit into so few steps.
    """
    decode_us = times.decode_us(num_seqs)
    arrivals = num_seqs / load.num_steps * load.num_chunks
    if load.prefill_workers:
        service_us = load.num_chunks * times.chunk_us(1.0, 0.0)
        busy_frac = num_seqs * service_us / (load.num_steps * decode_us * load.prefill_workers)
        mix = _Mix(
            decode_us, decode_us, 0.0, service_us + load.transfer_us, decode_us, service_us / load.num_prefill_workers,
            busy_frac,
        )  # fmt: skip
        return mix if busy_frac <= _MAX_BUSY_FRAC else None
    prompt_frac = max(-math.expm1(-arrivals), arrivals / load.chunks_per_step)
    chunk_us = times.chunk_us(arrivals / prompt_frac, num_seqs)
    step_us, long_step_us = decode_us + prompt_frac * chunk_us, decode_us + chunk_us
    if load.is_mixed:
        busy_frac, running_us, prompt_us = arrivals / load.chunks_per_step, step_us, load.num_chunks * long_step_us
    else:
        busy_frac, prompt_us = prompt_frac * chunk_us / step_us, load.num_chunks * chunk_us
        running_us = (1.0 - busy_frac) * decode_us
    if busy_frac > _MAX_BUSY_FRAC:
        return None
    return _Mix(step_us, long_step_us, prompt_frac, prompt_us, running_us, prompt_us, busy_frac)


def steady_state(load: Load, times: Times) -> SteadyState:
    """Return the steady state of a closed loop, in which a request waits, is read, and is decoded, again and again.

    Little's law gives the sequences in decode: they are to the concurrency as a request's time in decode is to its
    whole time. Where memory or full steps allow fewer, the other requests wait.
    """

    def mix_of(num_seqs: float) -> _Mix | None:
        """Return the mix of steps; None: more sequences than their share of the concurrency."""
        mix = _mix(load, times, num_seqs)
        if mix is None:
            return None
        decode_us = load.num_steps * mix.step_us
        request_us = mix.running_us + mix.queue_us + mix.prompt_us + decode_us
        return mix if num_seqs * request_us <= load.concurrency * decode_us else None

    most = num_seqs = min(load.concurrency, load.max_seqs)
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
    steady_us = mix.running_us + mix.queue_us
    is_full = wait_us > (1.0 + _FULL_MARGIN) * steady_us
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
