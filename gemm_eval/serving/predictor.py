"""`StepPredictor`: the time of any step of a replica, for simulators that have a scheduler of their own."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gemm_eval.checks import as_integer
from gemm_eval.errors import InvalidOptionError
from gemm_eval.estimate import Replica, StepSize
from gemm_eval.workload import MAX_DIM

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
