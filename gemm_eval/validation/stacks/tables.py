"""Measured steps of stacks of layers: reading their tables.

Committed tables lie in ``arch/measured/<gpu>/stacks``: ``steps.csv`` has a row for each step and one for each of its
operations, ``held.csv`` what a step held. `benchmarks/measure_stacks.py` writes them and says what they cover.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

import pandas as pd

from gemm_eval.errors import InvalidOptionError
from gemm_eval.validation.tables import measured_root
from gemm_eval.words import refusal

__all__ = ["StackStep", "gpus_with_stacks", "list_stack_steps"]

_FOLDER, _WHOLE = "stacks", "step"


class StackStep(NamedTuple):
    """A measured step.

    Attributes:
        gpu: arch name.
        model, num_layers: preset, and how many of its layers there were.
        dtype: ``bf16`` or ``w4a16``, of the weights; activations are bf16.
        batch, q_len, kv_len: sequences, tokens of each in this step, and positions of each in its cache.
        latency_us: of the step.
        operations: microseconds of each operation in all layers together, by name, in the order of the step.
        weight_bytes, cache_bytes, activation_bytes: what was held, the last at the peak of the step.
        expert_rows: rows of each expert, of each layer; empty: it has none.
    """

    gpu: str
    model: str
    num_layers: int
    dtype: str
    batch: int
    q_len: int
    kv_len: int
    latency_us: float
    operations: dict[str, float]
    weight_bytes: int
    cache_bytes: int
    activation_bytes: int
    expert_rows: tuple[tuple[int, ...], ...] = ()

    @property
    def is_prompt(self) -> bool:
        """Whether it is a prompt; else one token for each sequence."""
        return self.q_len > 1

    @property
    def name(self) -> str:
        """As in ``llama-3-8b bf16, prompt of 512``."""
        what = f"prompt of {self.q_len:,}" if self.is_prompt else f"batch {self.batch} at {self.kv_len:,}"
        return f"{self.model} {self.dtype}, {what}"


_KEYS = ["model", "num_layers", "dtype", "batch", "q_len", "kv_len"]


def gpus_with_stacks() -> list[str]:
    """Return the GPUs that have measured stacks."""
    return sorted(path.parent.name for path in measured_root("").glob(f"*/{_FOLDER}"))


def list_stack_steps(gpu: str) -> Iterator[StackStep]:
    """Yield the measured steps of a GPU, in the order in which they ran.

    Raises:
        InvalidOptionError: it has none.
    """
    if gpu not in gpus_with_stacks():
        raise InvalidOptionError(refusal("gpu", gpu, gpus_with_stacks()))
    folder = measured_root(gpu) / _FOLDER
    memory = {tuple(row[name] for name in _KEYS): row for row in pd.read_csv(folder / "held.csv").to_dict("records")}
    for key, rows in pd.read_csv(folder / "steps.csv").groupby(_KEYS, sort=False):
        model, num_layers, dtype, batch, q_len, kv_len = cast("tuple[str, int, str, int, int, int]", key)
        held = memory[tuple(key)]
        times: dict[str, float] = dict(zip(rows["operation"], rows["latency_us"], strict=True))
        yield StackStep(
            gpu, model, num_layers, dtype, batch, q_len, kv_len, times.pop(_WHOLE), times, int(held["weight_bytes"]),
            int(held["cache_bytes"]), int(held["activation_bytes"]),
            _expert_rows(held["expert_rows"]),
        )  # fmt: skip


def _expert_rows(text: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(text, str):
        return ()
    return tuple(tuple(map(int, layer.split())) for layer in text.split(";"))
