"""A GPU that is none: arrays of numpy, a clock that calls advance, and engines that multiply on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np

from gemm_eval.measure.engines import (
    Bound,
    DenseGemm,
    Engine,
    ExpertWeights,
    GroupedEngine,
    GroupedGemm,
    Weights,
)
from tests.measure.fake_runner import FakeRunner


class FakeDevice(FakeRunner):
    """See `BenchDevice`."""

    cupy = np

    def __init__(self) -> None:
        super().__init__()
        self.num_freed = 0

    @property
    def stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    def empty_bytes(self, num_bytes: int) -> Any:
        return np.empty(-(-num_bytes // 256) * 256, np.uint8)

    def fill_normal(self, buffer: Any, seed: int, *, is_bf16: bool) -> None:
        values = np.random.default_rng(seed).normal(size=buffer.nbytes // 2).astype(np.float32)
        bits = values.view(np.uint32) >> 16 if is_bf16 else values.astype(np.float16).view(np.uint16)
        buffer.view(np.uint16)[...] = bits

    def free_unused(self) -> None:
        self.num_freed += 1


class FakeEngine(Engine[Any]):
    """Multiplies in fp32, and takes as long as `us` says."""

    name: ClassVar[str] = "ours"
    us: ClassVar[Callable[[DenseGemm], float]]
    is_wrong: ClassVar[bool] = False

    def describe(self) -> str:
        return f"{self.name} 1.0"

    def pack(self, weights: Weights) -> Any:
        return weights.dense()

    def copy(self, packed: Any) -> Any:
        return packed.copy()

    def num_bytes(self, packed: Any) -> int:
        return int(packed.nbytes)

    def bind(self, gemm: DenseGemm) -> Bound:
        a, c = self.operands.inputs(gemm.M, gemm.K), self.operands.output(gemm.M, gemm.N)
        device: Any = self.device

        def call(w: Any) -> None:
            product = _floats(a) @ _floats(w).T
            c.view(np.uint16)[...] = _bits(2 * product if self.is_wrong else product, c.dtype)
            device.now_us += type(self).us(gemm)

        return Bound([lambda w=w: call(w) for w in self.copies], lambda: c, str(gemm.activation), f"{self.name} tile")


def _floats(stored: Any) -> Any:
    if stored.dtype == np.float16:
        return stored.astype(np.float32)
    return (stored.astype(np.uint32) << 16).view(np.float32)


def _bits(values: Any, dtype: Any) -> Any:
    values = values.astype(np.float32)
    return values.astype(np.float16).view(np.uint16) if dtype == np.float16 else values.view(np.uint32) >> 16


def fake_engine(name: str, us: Callable[[DenseGemm], float], *, is_wrong: bool = False) -> type[FakeEngine]:
    """Make an engine that takes so many us for a GEMM."""
    return type(name, (FakeEngine,), {"name": name, "us": staticmethod(us), "is_wrong": is_wrong})


class FakeGroupedEngine(GroupedEngine[Any]):
    """Multiplies each group in fp32, and takes as long as `us` says."""

    name: ClassVar[str] = "ours"
    us: ClassVar[Callable[[GroupedGemm], float]]
    is_wrong: ClassVar[bool] = False

    def describe(self) -> str:
        return f"{self.name} 1.0"

    def pack(self, weights: ExpertWeights) -> Any:
        return [one.dense() for one in weights.experts]

    def copy(self, packed: Any) -> Any:
        return [one.copy() for one in packed]

    def num_bytes(self, packed: Any) -> int:
        return sum(int(one.nbytes) for one in packed)

    def call(self, gemm: GroupedGemm, packed: Any, offsets: Any, on_gpu: Any) -> Any:
        a, c = self.operands.inputs(gemm.rows, gemm.layer.K), self.operands.output(gemm.rows, gemm.layer.N)
        device: Any = self.device
        assert (on_gpu == offsets).all()

        def enqueue() -> None:
            bounds = offsets.tolist()
            for group, (start, stop) in enumerate(itertools.pairwise(bounds)):
                w = packed[(group + self.is_wrong) % len(packed)]  # of its neighbour
                c.view(np.uint16)[start:stop] = _bits(_floats(a[start:stop]) @ _floats(w).T, c.dtype)
            device.now_us += type(self).us(gemm)

        return enqueue


def fake_grouped_engine(
    name: str, us: Callable[[GroupedGemm], float], *, is_wrong: bool = False
) -> type[FakeGroupedEngine]:
    """Make an engine of grouped GEMMs that takes so many us for one."""
    return type(name, (FakeGroupedEngine,), {"name": name, "us": staticmethod(us), "is_wrong": is_wrong})
