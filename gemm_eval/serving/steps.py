"""Times of the steps of a replica at any load, priced on a grid of sizes, and of any step, for other simulators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from statistics import fmean

from gemm_eval.checks import as_integer
from gemm_eval.errors import InvalidOptionError
from gemm_eval.estimate import Replica, StepEstimate, StepSize
from gemm_eval.transformer import num_joined
from gemm_eval.workload import MAX_DIM

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

    def price(self, most_decodes: int, *, reads_prompts: bool = True) -> None:
        """Price in one batch all steps that loads of up to `most_decodes` sequences ask for; 0: of prompts alone."""
        sizes = [self._decode_size(num) for num in _grid(most_decodes)] if most_decodes else []
        if reads_prompts:
            beside = _grid(most_decodes, _COARSE_BITS) if self._is_mixed and most_decodes else [0]
            chunks = _grid(math.ceil(self.chunks_per_step), _COARSE_BITS) if most_decodes else [1]
            sizes += [self._chunk_size(num, other) for num in chunks for other in dict.fromkeys((0, *beside))]
        self._find(sizes)

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

    Raises:
        UnsupportedError: no link joins devices, or no network joins nodes.
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
    """Return the numbers of the grid up to the first at or above `most`."""
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
    """Return the nearest number of 4 leading bits."""
    spacing = 1 << max(0, int(value).bit_length() - _BITS)
    return max(0 if value < 1 else 1, round(value / spacing) * spacing)
