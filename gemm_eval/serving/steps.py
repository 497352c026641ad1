"""Times of the steps of a replica at any load: priced on a grid of sizes, and interpolated between."""

from __future__ import annotations

from collections.abc import Callable

from gemm_eval.estimate import Replica, StepEstimate, StepSize

_GRID_BITS = 3  # leading bits that a number of sequences on the grid has: steps of 12 to 25%


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
        self.replica, engine = replica, replica.engine
        self.num_chunks = -(-prompt_tokens // replica.chunk_tokens)
        self.chunk_tokens = -(-prompt_tokens // self.num_chunks)
        # the middle one of the chunks, which are all of one size
        first = prompt_len - prompt_tokens
        self._chunk_len = first + (prompt_tokens + self.chunk_tokens) // 2
        self._decode_len, self._new_tokens = decode_len, new_tokens
        self._is_mixed = engine.has_mixed_steps
        self._host_us: Callable[[float], float] = lambda num_seqs: engine.step_us + engine.seq_us * num_seqs
        self._steps: dict[StepSize, StepEstimate] = {}

    @property
    def chunks_per_step(self) -> float:
        """Chunks that a step holds."""
        return max(1.0, self.replica.chunk_tokens / self.chunk_tokens)

    def decode_us(self, num_seqs: float) -> float:
        """Return the time in which each of `num_seqs` sequences gains its next tokens; in a pipeline, in all parts."""
        return _interpolate(self._decode_us, num_seqs)

    def chunk_us(self, num_chunks: float, num_seqs: float) -> float:
        """Return what chunks of prompts add to a step with `num_seqs` decodes, or the time of a step of their own.

        In a pipeline it is the time on the stage that takes longest: chunks follow each other through the stages.
        """
        beside = _on_grid(num_seqs) if self._is_mixed else 0
        return _interpolate(lambda chunks: self._chunk_us(chunks, beside), num_chunks)

    def fill_us(self) -> float:
        """Return how much later than from one stage a chunk comes out of a whole pipeline."""
        stage_us = self.chunk_step(1, 0).stage_us
        return sum(stage_us) - max(stage_us)

    def decode_step(self, num_seqs: int) -> StepEstimate:
        """Return the step of decode; of a pipeline, that of the part of the sequences on one stage."""
        parts = min(self.replica.pipeline_parallel, num_seqs)
        new = self._new_tokens
        return self._step(StepSize("decode", -(-num_seqs // parts), new, self._decode_len + new - 1))

    def chunk_step(self, num_chunks: int, num_decodes: int) -> StepEstimate:
        """Return a step of prefill, mixed where there are decodes."""
        beside = -(-num_decodes // self.replica.pipeline_parallel) * self._new_tokens
        decode_len = self._decode_len if beside else 1
        return self._step(StepSize("prefill", num_chunks, self.chunk_tokens, self._chunk_len, beside, decode_len))

    def _decode_us(self, num_seqs: int) -> float:
        stage_us = self.decode_step(num_seqs).stage_us
        parts = min(self.replica.pipeline_parallel, num_seqs)
        return max(sum(stage_us), parts * max(stage_us)) + self._host_us(num_seqs)

    def _chunk_us(self, num_chunks: int, num_decodes: int) -> float:
        step_us = max(self.chunk_step(num_chunks, num_decodes).stage_us)
        if num_decodes:
            return max(0.0, step_us - max(self.decode_step(num_decodes).stage_us))
        return step_us + self._host_us(num_chunks)

    def _step(self, size: StepSize) -> StepEstimate:
        if size not in self._steps:
            (self._steps[size],) = self.replica.steps([size])
        return self._steps[size]


def _on_grid(value: float) -> int:
    """Return the number of the grid at or below a value; at least 1."""
    whole = max(1, int(value))
    return whole // _spacing(whole) * _spacing(whole)


def _spacing(whole: int) -> int:
    return 1 << max(0, whole.bit_length() - _GRID_BITS)


def _interpolate(function: Callable[[int], float], value: float) -> float:
    """Return a function between the two numbers of the grid around a value; below 1 that at 1."""
    low = _on_grid(value)
    share = (max(1.0, value) - low) / _spacing(low)
    if share <= 0.0:
        return function(low)
    return function(low) + share * (function(low + _spacing(low)) - function(low))
