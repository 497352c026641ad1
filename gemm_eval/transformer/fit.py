"""Checks that a model fits into the memory of a device, the largest batch that does, and changes that make it fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.checks import plain_number
from gemm_eval.errors import InfeasibleError, InvalidOptionError
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.memory import ModelMemory, model_memory
from gemm_eval.words import shown

MEMORY_FRAC = 0.9
"""Share of the memory of a GPU that a model may use by default: vLLM's `gpu_memory_utilization`."""

_MAX_DEGREE = 1024  # of parallelism, up to which one that fits is looked for
_MAX_COUNT = 1 << 30
_NARROWER = ("fp8", "w4a16")
_KV_NARROWER = ("fp8",)


class MemoryLever(NamedTuple):
    """A change of options that makes a model fit.

    Attributes:
        option: the argument of `model_memory`.
        value: the least change of it that does.
        total_bytes: what a device then holds.
    """

    option: str
    value: int | str
    total_bytes: int

    def __str__(self) -> str:
        return f"{self.option} = {self.value} ({self.total_bytes / 1e9:,.1f} GB a device)"


def check_memory(
    config: ModelConfig, arch: ArchSpec, *, memory_frac: float = MEMORY_FRAC, **options: Any
) -> ModelMemory:
    """Check that a model fits into the DRAM of each device, as far as the size of that is known.

    Args:
        config: the model.
        arch: the device; multi-core chips do not say the size of their DRAM, and are not checked.
        memory_frac: share of the DRAM that may be used.
        options: as for `model_memory`.

    Returns:
        What it takes of a device.

    Raises:
        InfeasibleError: it is larger than that share of `dram_bytes`; it says what would help, with the figure of each.
        InvalidOptionError, InvalidProblemError: as `model_memory`.
    """
    memory = model_memory(config, **options)
    limit = _limit(arch, memory_frac)
    if limit is not None and memory.total_bytes > limit:
        raise InfeasibleError(
            f"{config.name} does not fit into {memory_frac:g} of the DRAM of a device ({arch.name}; memory_frac), with "
            f"weights of {memory.weight_bytes:,}, a KV cache of {memory.kv_cache_bytes:,} and activations of "
            f"{memory.activation_bytes:,} bytes",
            resource="dram",
            demand=memory.total_bytes,
            limit=limit,
            unit="bytes",
            levers=tuple(map(str, memory_levers(config, limit, arch=arch, **options))),
        )
    return memory


def _limit(arch: ArchSpec, memory_frac: float) -> int | None:
    frac = plain_number(memory_frac)
    if frac is None or not 0 < frac <= 1:
        raise InvalidOptionError(f"memory_frac must be above 0 and at most 1, got {shown(memory_frac)}")
    return int(arch.dram_bytes * frac) if isinstance(arch, GpuSpec) else None


def say_memory(memory: ModelMemory, arch: ArchSpec, memory_frac: float = MEMORY_FRAC) -> str:
    """Return one line: what a model takes of a device, and what it may take (`memory_frac` of its DRAM)."""
    held = (
        f"weights {memory.weight_bytes / 1e9:,.1f} GB, KV cache {memory.kv_cache_bytes / 1e9:,.1f} GB and activations "
        f"{memory.activation_bytes / 1e9:,.1f} GB a device"
    )
    if isinstance(arch, GpuSpec):
        return f"{held}, of {memory_frac:g} x {arch.dram_bytes / 1e9:,.1f} GB that may be used (memory_frac)"
    return f"{held}; the size of its DRAM is not known, so whether they fit is not checked"


def memory_document(
    memory: ModelMemory, config: ModelConfig, arch: ArchSpec | None, *, memory_frac: float = MEMORY_FRAC, **options: Any
) -> dict[str, Any]:
    """Return a model's memory as plain values, for JSON and tables.

    Args:
        memory: what `model_memory` says for `options`.
        config: the model.
        arch: a GPU whose largest batch is asked for; None: it is not asked for.
        memory_frac: share of its DRAM that may be used, which leaves a runtime its part.
        options: as for `model_memory`.
    """
    document = dataclasses.asdict(memory) | {"total_bytes": memory.total_bytes}
    if isinstance(arch, GpuSpec):
        limit = int(arch.dram_bytes * memory_frac)
        document |= {
            "memory_frac": memory_frac, "limit_bytes": limit, "largest_batch": largest_batch(config, limit, **options),
            "largest_seq_len": largest_seq_len(config, limit, **options),
        }  # fmt: skip
    return document


def largest_batch(config: ModelConfig, limit_bytes: int, **options: Any) -> int:
    """Return the most sequences of `seq_len` positions with which a model fits into `limit_bytes`; 0: not one.

    Args:
        config: the model.
        limit_bytes: memory that may be used of a device, such as 0.9 of its DRAM.
        options: as for `model_memory`, without `batch_size`.

    Raises:
        InvalidOptionError, InvalidProblemError: as `model_memory`.
    """
    options.pop("batch_size", None)
    return _largest(lambda num: model_memory(config, batch_size=num, **options).total_bytes <= limit_bytes)


def largest_seq_len(config: ModelConfig, limit_bytes: int, **options: Any) -> int:
    """Return the most positions of each of `batch_size` sequences with which a model fits; 0: not one.

    Arguments and errors are those of `largest_batch`, with `batch_size` and without `seq_len`.
    """
    options.pop("seq_len", None)
    return _largest(lambda num: model_memory(config, seq_len=num, **options).total_bytes <= limit_bytes)


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, for what only grows; 0: not even 1."""
    low, high = 0, 1
    while high < _MAX_COUNT and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def memory_levers(
    config: ModelConfig, limit_bytes: int, *, arch: ArchSpec | None = None, **options: Any
) -> tuple[MemoryLever, ...]:
    """Return the changes, each alone, with which a model fits into `limit_bytes` of a device.

    Candidates are the least degrees of parallelism that the model divides into, narrower weights and caches, fewer
    sequences and positions. Groups of tensor and expert parallelism stay within the devices that the link of `arch`
    joins. `options` are those of `model_memory`.
    """
    joined = _MAX_DEGREE if arch is None else num_joined(arch)
    return tuple(_levers(config, limit_bytes, joined, options))


def num_joined(arch: ArchSpec) -> int:
    """Return how many devices the link of an arch joins; 1: its spec has none."""
    return arch.interconnect.num_gpus if isinstance(arch, GpuSpec) and arch.interconnect is not None else 1


def _levers(config: ModelConfig, limit: int, joined: int, options: dict[str, Any]) -> Iterator[MemoryLever]:
    def lever(option: str, value: int | str, **more: Any) -> MemoryLever | None:
        try:
            total = model_memory(config, **options | {option: value} | more).total_bytes
        except InvalidOptionError:  # a degree that does not divide the model
            return None
        return MemoryLever(option, value, total) if total <= limit else None

    for option, at_most in (
        ("tensor_parallel", joined),
        ("pipeline_parallel", min(_MAX_DEGREE, config.num_layers)),
        ("expert_parallel", min(joined, config.moe.num_experts) if config.moe is not None else 0),
    ):
        degree = 2 * options.get(option, 1)
        result = None
        while result is None and degree <= at_most:
            result = lever(option, degree)
            degree *= 2
        if result is not None:
            yield result
    for dtype in _NARROWER:
        result = lever("dtype", dtype, expert_dtype=None)
        if result is not None and result.total_bytes < model_memory(config, **options).total_bytes:
            yield result
    for dtype in _KV_NARROWER:
        result = lever("kv_dtype", dtype)
        if result is not None:
            yield result
    for option, most in (("batch_size", largest_batch), ("seq_len", largest_seq_len)):
        num = most(config, limit, **options)
        result = lever(option, num) if 0 < num < options[option] else None
        if result is not None:
            yield result
