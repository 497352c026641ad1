"""What no kernel for few tokens can beat: reading the weights once, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from gemm_eval.device import Call, TimingProtocol
from gemm_eval.measure.protocol import measure_shape
from gemm_eval.measure.runners.base import OperandLayout, Runner
from gemm_eval.measure.shapes import KernelItem

if TYPE_CHECKING:
    from gemm_eval.measure.runners.w4a16 import W4A16Runner

__all__ = ["measure_read_us"]


@dataclass
class _Reading:
    """The runner, except that a call reads a copy of the weights and nothing else."""

    runner: W4A16Runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def bind(self, shape: KernelItem, layout: OperandLayout) -> Sequence[Call]:
        num_bytes = self.runner.weight_bytes(shape)
        pool = self.runner.buffers["W"]
        return [
            partial(self.runner.read_bytes, pool.data.ptr + offset, num_bytes)
            for offset in layout.weight_offsets
            if offset + num_bytes <= pool.nbytes
        ]


def measure_read_us(runner: W4A16Runner, item: KernelItem, protocol: TimingProtocol, *, floor_us: float = 0.0) -> float:
    """Time one pass over as many bytes as the packed weights and scales of `item` have, in us.

    Timed as kernels are: cold copies in turn, in a CUDA graph. `runner` has its buffers (`allocate`).
    """
    return measure_shape(cast(Runner, _Reading(runner)), item, protocol, floor_us=floor_us).latency_us
