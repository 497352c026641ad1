"""Continuous batching in closed form: times of steps at any load, the mix of steps, and how long a request waits.

An engine runs one step after the other. Each step gives every sequence in decode a token. Prompts are read in chunks of
at most `chunk_tokens`: in the same steps (mixed steps: vLLM, TensorRT-LLM), or in steps of their own, which go first
(SGLang's default). Clients keep a fixed number of requests in flight. SERVING.md derives the formulas;
`tests/serving/simulate.py` plays the same rules event by event. Steps are priced on a grid of sizes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

from gemm_eval.errors import InvalidOptionError
from gemm_eval.estimate import Replica, StepEstimate, StepSize
from gemm_eval.transformer import num_joined
from gemm_eval.words import as_integer
from gemm_eval.workload import MAX_DIM

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


_GRID_BITS = 3  # leading bits that a number of sequences on the grid has: steps of 12 to 25%
_COARSE_BITS = 1  # the same of chunks, and of decodes beside them, in which times are nearly straight


class StepTimes:
    """Times of the steps of a replica for requests of one size; a step is priced when it is first asked for.

    Args:
        prompt_tokens: of a prompt that are read: those that no cached prefix has.
        prompt_len: positions of a prompt.
        decode_len: positions of a sequence in the middle of its output.
        new_tokens: of a sequence in a decode step: one, and guesses.
    """

    def __init__(
        self, replica: Replica, *, prompt_tokens: int, prompt_len: int, decode_len: int, new_tokens: int = 1
    ) -> None:
        self.replica = replica
        self.num_chunks = -(-prompt_tokens // replica.chunk_tokens)
        self.chunk_tokens = -(-prompt_tokens // self.num_chunks)
        # the middle one of the chunks, which are all of one size
        first = prompt_len - prompt_tokens
        self._chunk_len = first + (prompt_tokens + self.chunk_tokens) // 2
        self._decode_len, self._new_tokens = decode_len, new_tokens
        self._is_mixed = replica.engine.has_mixed_steps
        self._prompt_len = prompt_len
        self._steps: dict[StepSize, StepEstimate] = {}
        # times without the host's, which are read when asked
        self._gpu_us: dict[int, float] = {}
        self._added_us: dict[tuple[int, int], float] = {}

    @property
    def chunks_per_step(self) -> float:
        """Chunks that a step holds."""
        return max(1.0, self.replica.chunk_tokens / self.chunk_tokens)

    def price(self, most_decodes: int) -> None:
        """Price in one batch all steps that loads of up to `most_decodes` sequences, at least 1, ask for."""
        sizes = [self._decode_size(num) for num in _grid(most_decodes)]
        beside = _grid(most_decodes, _COARSE_BITS) if self._is_mixed else []
        chunks = _grid(math.ceil(self.chunks_per_step), _COARSE_BITS)
        self._find([*sizes, *(self._chunk_size(num, other) for num in chunks for other in (0, *beside))])

    def decode_us(self, num_seqs: float) -> float:
        """Return the time in which each of `num_seqs` sequences gains its next tokens; in a pipeline, in all parts."""
        return _interpolate(self._decode_us, num_seqs)

    def chunk_us(self, num_chunks: float, num_seqs: float) -> float:
        """Return what chunks of prompts add to a step with `num_seqs` decodes, or the time of a step of their own.

        In a pipeline it is the time on the stage that takes longest: chunks follow each other through the stages.
        """
        if not (self._is_mixed and num_seqs):
            return _interpolate(lambda chunks: self._chunk_us(chunks, 0), num_chunks, _COARSE_BITS)
        return _interpolate(
            lambda beside: _interpolate(lambda chunks: self._chunk_us(chunks, beside), num_chunks, _COARSE_BITS),
            num_seqs, _COARSE_BITS,
        )  # fmt: skip

    def alone_us(self) -> float:
        """Return the time of a step of one chunk with nothing beside it."""
        return self._chunk_us(1, 0)

    def fill_us(self) -> float:
        """Return how much later than from one stage a chunk comes out of a whole pipeline."""
        stage_us = self.chunk_step().stage_us
        return sum(stage_us) - max(stage_us)

    @cached_property
    def prompt_cache_bytes(self) -> int:
        """Bytes of the cache of a prompt on each of the devices that hold it."""
        return self.replica.memory(1, self._prompt_len).kv_cache_bytes

    def decode_step(self, num_seqs: float) -> StepEstimate:
        """Return the step of decode with the number of sequences on the grid that is next below.

        Of a pipeline it is that of the part of the sequences on one stage.
        """
        return self._step(self._decode_size(_on_grid(num_seqs)))

    def chunk_step(self) -> StepEstimate:
        """Return a step of one chunk of prefill with nothing beside it."""
        return self._step(self._chunk_size(1, 0))

    def _decode_size(self, num_seqs: int) -> StepSize:
        parts = min(self.replica.pipeline_parallel, num_seqs)
        new = self._new_tokens
        return StepSize("decode", -(-num_seqs // parts), new, self._decode_len + new - 1)

    def _chunk_size(self, num_chunks: int, num_decodes: int) -> StepSize:
        beside = -(-num_decodes // self.replica.pipeline_parallel) * self._new_tokens
        decode_len = self._decode_len if beside else 1
        return StepSize("prefill", num_chunks, self.chunk_tokens, self._chunk_len, beside, decode_len)

    def _decode_us(self, num_seqs: int) -> float:
        if num_seqs not in self._gpu_us:
            stage_us = self._step(self._decode_size(num_seqs)).stage_us
            parts = min(self.replica.pipeline_parallel, num_seqs)
            self._gpu_us[num_seqs] = max(sum(stage_us), parts * max(stage_us))
        return self._gpu_us[num_seqs] + self.replica.engine.host_us(num_seqs)

    def _chunk_us(self, num_chunks: int, num_decodes: int) -> float:
        key = num_chunks, num_decodes
        if key not in self._added_us:
            step_us = max(self._step(self._chunk_size(num_chunks, num_decodes)).stage_us)
            if num_decodes:
                step_us = max(0.0, step_us - max(self._step(self._decode_size(num_decodes)).stage_us))
            self._added_us[key] = step_us
        return self._added_us[key] + (0.0 if num_decodes else self.replica.engine.host_us(num_chunks))

    def _step(self, size: StepSize) -> StepEstimate:
        self._find([size])
        return self._steps[size]

    def _find(self, sizes: Iterable[StepSize]) -> None:
        new = [size for size in dict.fromkeys(sizes) if size not in self._steps]
        if new:
            self._steps.update(zip(new, self.replica.steps(new), strict=True))


def transfer_us(reader: StepTimes, decoder: StepTimes, num_devices: int) -> tuple[float, float]:
    """Return the times in which the cache of a prompt leaves its reader's devices, and arrives at those of its decoder.

    Devices send and receive side by side, each by its own rail: over the network where `num_devices`, of both pools,
    are more than the link joins. What several devices of a decoder hold alike (latents) is sent to each of them.
    """
    evaluator = decoder.replica.evaluator
    senders, receivers = (each.replica.tensor_parallel * each.replica.pipeline_parallel for each in (reader, decoder))
    per_node = 1 if num_devices > num_joined(evaluator.arch) else None
    received = decoder.prompt_cache_bytes
    sent = -(-received * receivers // senders)
    send_us, receive_us = (
        evaluator.evaluate_collective("send", num_bytes, 2, ranks_per_node=per_node).latency_us
        for num_bytes in (sent, received)
    )
    return send_us, receive_us


def _grid(most: int, bits: int = _GRID_BITS) -> list[int]:
    numbers = [1]
    while numbers[-1] < most:
        numbers.append(numbers[-1] + _spacing(numbers[-1], bits))
    return numbers


def _on_grid(value: float) -> int:
    """Return the number of the grid at or below a value; at least 1."""
    whole = max(1, int(value))
    return whole // _spacing(whole) * _spacing(whole)


def _spacing(whole: int, bits: int = _GRID_BITS) -> int:
    """Return how far the numbers of the grid around a whole number are from each other."""
    return 1 << max(0, whole.bit_length() - bits)


def _interpolate(function: Callable[[int], float], value: float, bits: int = _GRID_BITS) -> float:
    """Return a function between the two numbers of the grid around a value; below 1 that at 1."""
    step = _spacing(int(max(1.0, value)), bits)
    low = max(1, int(value)) // step * step
    share = (max(1.0, value) - low) / step
    if share <= 0.0:
        return function(low)
    return function(low) + share * (function(low + step) - function(low))


_BITS = 4  # leading bits that sizes are rounded to: within 6.3%, half of it in the mean
_US_PER_S = 1e6


class StepPredictor:
    """Predicts the time of a step from the sequences that are in it.

    Sequences of one kind count with their mean length. Numbers are rounded to 4 leading bits, so that a simulation
    prices few steps: the first of a size takes some milliseconds, the next ones microseconds.

    >>> StepPredictor(Replica("llama-3-8b", "h200-sxm")).predict([512], [0], [900] * 32)     # doctest: +SKIP
    """

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._times_s: dict[StepSize, float] = {}

    def predict(self, prefill_lens: Sequence[int], prefix_lens: Sequence[int], decode_lens: Sequence[int]) -> float:
        """Return the time of a step in seconds; of a pipeline through all stages.

        Args:
            prefill_lens: new tokens of each prompt, or chunk of one, that the step reads.
            prefix_lens: positions before them, which are in the cache already.
            decode_lens: positions that the new token of each sequence in decode attends to, itself included.

        Raises:
            InvalidOptionError: lengths that are no positive integers, or prefixes that are not as many as prompts.
        """
        if len(prefill_lens) != len(prefix_lens):
            raise InvalidOptionError(f"prefix_lens must have {len(prefill_lens)} lengths, got {len(prefix_lens)}")
        for name, lengths, least in (
            ("prefill", prefill_lens, 1),
            ("prefix", prefix_lens, 0),
            ("decode", decode_lens, 1),
        ):
            for length in lengths:
                as_integer(f"{name}_lens", length, least, MAX_DIM)
        decodes, decode_len = (_rounded(len(decode_lens)), _rounded(fmean(decode_lens))) if decode_lens else (0, 1)
        if prefill_lens:
            new, prefix = _rounded(fmean(prefill_lens)), _rounded(fmean(prefix_lens))
            size = StepSize("prefill", _rounded(len(prefill_lens)), new, prefix + new, decodes, decode_len)
        elif decodes:
            size = StepSize("decode", decodes, 1, decode_len)
        else:
            return 0.0
        if size not in self._times_s:
            (step,) = self.replica.steps([size])
            self._times_s[size] = step.latency_us / _US_PER_S
        return self._times_s[size]


def _rounded(value: float) -> int:
    spacing = 1 << max(0, int(value).bit_length() - _BITS)
    return max(0 if value < 1 else 1, round(value / spacing) * spacing)
