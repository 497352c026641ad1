"""Limits of memory of a device: shares of memory as engines mean them, the largest batch, and changes that help."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from gemm_eval.arch import ArchSpec, Interconnect
from gemm_eval.errors import InfeasibleError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.memory import ModelMemory, model_memory
from gemm_eval.words import plain_number, shown

MEMORY_FRAC = 0.9
"""Share of the memory of a GPU that a model may use by default: vLLM's `gpu_memory_utilization`."""

_MAX_DEGREE = 1024  # of parallelism, up to which one that fits is looked for
_MAX_COUNT = 1 << 30
_NARROWER = (("dtype", "fp8"), ("dtype", "w4a16"), ("kv_dtype", "fp8"))


class MemoryShare(NamedTuple):
    """The share of a device's memory that an engine fills, and what it is a share of.

    Attributes:
        frac: the share.
        of: ``"device"``: weights, activations and cache take this share of the memory (vLLM, gpu_memory_utilization);
            ``"static"``: weights and cache do, and activations lie in the rest (SGLang, mem_fraction_static);
            ``"free"``: the cache takes this share of what weights and activations leave (TensorRT-LLM,
            free_gpu_memory_fraction).
        reserve_bytes: of the context of the driver, of libraries and of graphs.
    """

    frac: float = MEMORY_FRAC
    of: Literal["device", "static", "free"] = "device"
    reserve_bytes: int = 0

    def __str__(self) -> str:
        dram = {"device": "DRAM", "static": "DRAM without activations", "free": "free DRAM"}
        return f"{self.frac:g} of the {dram[self.of]}"

    def limit_on(self, arch: ArchSpec) -> Limit | None:
        """Return the limit on a device; None: the arch does not say its DRAM. InvalidOptionError: a bad share."""
        memory_limit(arch, self.frac)
        return None if arch.dram_bytes is None else partial(self._limit_bytes, arch.dram_bytes)

    def _limit_bytes(self, dram_bytes: int, memory: ModelMemory) -> int:
        usable = dram_bytes - self.reserve_bytes
        if self.of == "free":
            held = memory.weight_bytes + memory.activation_bytes
            return held + int(self.frac * (usable - held))
        if self.of == "static":
            return min(usable, int(self.frac * usable) + memory.activation_bytes)
        return int(self.frac * dram_bytes) - self.reserve_bytes


_SHARE = MemoryShare()

Limit = Callable[[ModelMemory], int]
"""The most bytes of weights, activations and cache on a device, by how large weights and activations are."""


class MemoryLever(NamedTuple):
    """The least change of an argument of `model_memory` that makes a model fit, and what a device then holds."""

    option: str
    value: int | str
    total_bytes: int

    def __str__(self) -> str:
        return f"{self.option}={self.value} ({self.total_bytes / 1e9:,.1f} GB a device)"


def check_memory(
    config: ModelConfig, arch: ArchSpec, *, share: MemoryShare = _SHARE, output_len: int = 0, **options: Any
) -> ModelMemory:
    """Check that a model fits into the DRAM of each device, as far as the size of that is known; return what it takes.

    Multi-core chips without `dram_bytes` are not checked. Of the positions of a sequence, `output_len` are given: the
    error proposes fewer of the others. `options` and other errors are those of `model_memory`.

    Raises:
        InfeasibleError: it is larger than its share; the error says what would help, with the figure of each.
    """
    memory = model_memory(config, **options)
    limit = share.limit_on(arch)
    if limit is not None and memory.total_bytes > limit(memory):
        raise InfeasibleError(
            f"{config.name} does not fit into {share} of a device ({arch.name}; memory_frac), with "
            f"weights of {memory.weight_bytes:,}, a KV cache of {memory.kv_cache_bytes:,} and activations of "
            f"{memory.activation_bytes:,} bytes",
            resource="dram", demand=memory.total_bytes, limit=limit(memory), unit="bytes",
            levers=tuple(
                str(lever._replace(value=int(lever.value) - output_len) if lever.option == "seq_len" else lever)
                for lever in memory_levers(config, limit, arch=arch, **options)
                if lever.option != "seq_len" or int(lever.value) > output_len
            ),
        )  # fmt: skip
    return memory


def memory_limit(arch: ArchSpec, memory_frac: float = MEMORY_FRAC) -> int | None:
    """Return the bytes of DRAM of a device that may be used; None: the arch does not say its DRAM.

    InvalidOptionError: `memory_frac` is not above 0 and at most 1.
    """
    frac = plain_number(memory_frac)
    if frac is None or not 0 < frac <= 1:
        raise InvalidOptionError(f"memory_frac must be above 0 and at most 1, got {shown(memory_frac)}")
    return None if arch.dram_bytes is None else int(arch.dram_bytes * frac)


def say_memory(memory: ModelMemory, arch: ArchSpec, share: MemoryShare = _SHARE) -> str:
    """Return one line: what a model takes of a device, and what it may take."""
    held = (
        f"weights {memory.weight_bytes / 1e9:,.1f} GB, KV cache {memory.kv_cache_bytes / 1e9:,.1f} GB and activations "
        f"{memory.activation_bytes / 1e9:,.1f} GB a device"
    )
    if arch.dram_bytes is not None:
        return f"{held}, within {share} of {arch.dram_bytes / 1e9:,.1f} GB (memory_frac)"
    return f"{held}; whether they fit is not checked, as {arch.name} does not say its dram_bytes"


def memory_document(
    memory: ModelMemory, config: ModelConfig, arch: ArchSpec | None, share: MemoryShare = _SHARE, **options: Any
) -> dict[str, Any]:
    """Return a model's memory for `options` of `model_memory` as plain values, for JSON and tables.

    `arch` is a GPU whose largest batch is asked for, in that share of its DRAM; None: it is not asked for.
    """
    document = dataclasses.asdict(memory) | {"total_bytes": memory.total_bytes}
    if arch is not None and (limit := share.limit_on(arch)) is not None:
        document |= {
            "memory_frac": share.frac, "limit_bytes": limit(memory),
            "largest_batch": largest_batch(config, limit, **options),
            "largest_seq_len": largest_seq_len(config, limit, **options),
        }  # fmt: skip
    return document


def largest_batch(config: ModelConfig, limit: Limit | int, **options: Any) -> int:
    """Return the most sequences of `seq_len` positions with which a model fits into a limit, in bytes; 0: not one.

    `options` and errors are those of `model_memory`, without `batch_size`.
    """
    return _largest(config, limit, "batch_size", options)


def largest_seq_len(config: ModelConfig, limit: Limit | int, **options: Any) -> int:
    """Return the most positions of each of `batch_size` sequences with which a model fits; 0: not one.

    `options` and errors are those of `model_memory`, without `seq_len`.
    """
    return _largest(config, limit, "seq_len", options)


def _left_bytes(memory: ModelMemory, limit: Limit | int) -> int:
    return (limit if isinstance(limit, int) else limit(memory)) - memory.total_bytes


def _largest(config: ModelConfig, limit: Limit | int, option: str, options: dict[str, Any]) -> int:
    def left_bytes(num: int) -> int:
        return _left_bytes(model_memory(config, **options | {option: num}), limit)

    low, low_left, high, high_left = 1, left_bytes(1), 2, 0
    if low_left < 0:
        return 0
    while high < _MAX_COUNT and (high_left := left_bytes(high)) >= 0:
        # bytes grow in proportion but for activations: where they would reach the limit
        step = (high - low) * high_left // max(1, low_left - high_left)
        low, low_left, high = high, high_left, min(_MAX_COUNT, high + max(1, step) + 1)
    is_middle = False
    while high - low > 1:
        share = 0.5 if is_middle or high == _MAX_COUNT else low_left / (low_left - high_left)
        middle = min(high - 1, max(low + 1, low + int(share * (high - low))))
        left, is_middle = left_bytes(middle), not is_middle
        if left >= 0:
            low, low_left = middle, left
        else:
            high, high_left = middle, left
    return low


def memory_levers(
    config: ModelConfig, limit: Limit | int, *, arch: ArchSpec | None = None, **options: Any
) -> tuple[MemoryLever, ...]:
    """Return the changes, each alone, with which a model fits into a limit of a device, in bytes.

    Candidates are the least degrees of parallelism that the model divides into, narrower weights and caches, fewer
    sequences and positions; none in a type of which `arch` runs no GEMMs. Groups of tensor parallelism stay within the
    devices that the link of `arch` joins, those of expert parallelism too where no network joins nodes. `options` are
    those of `model_memory`.
    """

    def lever(option: str, value: int | str, **more: Any) -> MemoryLever | None:
        try:
            memory = model_memory(config, **options | {option: value} | more)
        except InvalidOptionError:  # a degree that does not divide the model
            return None
        if _left_bytes(memory, limit) < 0 or not _runs(arch, value if option == "dtype" else options.get("dtype")):
            return None
        return MemoryLever(option, value, memory.total_bytes)

    joined = _MAX_DEGREE if arch is None else num_joined(arch)
    has_network = arch is not None and getattr(arch.interconnect, "network", None) is not None
    reached = _MAX_DEGREE if has_network else joined
    result: list[MemoryLever | None] = []
    for option, at_most in (
        ("tensor_parallel", joined),
        ("pipeline_parallel", min(_MAX_DEGREE, config.num_layers)),
        ("expert_parallel", min(reached, config.moe.num_experts) if config.moe is not None else 0),
    ):
        now = options.get(option, 1)
        degrees = (now << power for power in range(1, at_most.bit_length()) if now << power <= at_most)
        result.append(next(filter(None, (lever(option, degree) for degree in degrees)), None))
    total_bytes = model_memory(config, **options).total_bytes
    for option, dtype in _NARROWER:
        narrower = lever(option, dtype, **({"expert_dtype": None} if option == "dtype" else {}))
        is_gain = narrower is not None and (option == "kv_dtype" or narrower.total_bytes < total_bytes)
        result.append(narrower if is_gain else None)
    for option in ("batch_size", "seq_len"):
        num = _largest(config, limit, option, options)
        result.append(lever(option, num) if 0 < num < options[option] else None)
    return tuple(filter(None, result))


def _runs(arch: ArchSpec | None, dtype: Any) -> bool:
    """Say whether an arch runs GEMMs with weights of a type; a type that is not a word is not checked."""
    if arch is None or not isinstance(dtype, str):
        return True
    try:
        GEMMEvaluator(arch).evaluate(1, 16, 4096, 4096, dtype=dtype)
    except (UnsupportedError, InfeasibleError):
        return False
    return True


def num_joined(arch: ArchSpec) -> int:
    """Return how many devices the link of an arch joins; 1: its spec has none."""
    link = arch.interconnect
    return 1 if link is None else link.num_gpus if isinstance(link, Interconnect) else link.num_chips
