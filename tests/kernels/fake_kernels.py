"""Our kernels without a GPU: a runner with a time for each config, and a device whose memory is numpy's."""

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_eval.arch.gpu import limits_of_spec
from gemm_eval.device import Call
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels.families.base import Launch, Operands, WeightMode
from gemm_eval.kernels.layout import scales_dtype, scales_shape
from gemm_eval.kernels.registry import make_variant
from gemm_eval.kernels.weights import PackedW4, dequantize
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.measure import KernelItem, W4A16Runner, w4a16
from gemm_eval.measure.runner import BuiltKernel
from tests.measure.fake_runner import FakeRunner


def config(family: str = "w4a16_sm90", cta_m: int = 16, split_k: int = 1) -> KernelConfig:
    work = Decomposition.DATA_PARALLEL if split_k == 1 else Decomposition.SPLIT_K
    return KernelConfig(family, cta_m, 128, 64, 1, 1, 8, 4, Schedule.COOPERATIVE, work, split_k, RasterOrder.ALONG_M, 8)


def item(rows: int = 16, *, mode: WeightMode = WeightMode.GROUP, group_size: int = 128, **of_config: Any) -> KernelItem:
    return KernelItem(1, rows, 256, 128, mode, group_size, config(**of_config))


BUILT = BuiltKernel("w4a16_sm90", 1, 32, 1, 1, 384, 168, 50_000, 0, 2, "0123456789abcdef")


class FakeKernelRunner(FakeRunner):
    """Every config has its own time: `latency_us` for 16 tokens a CTA, in proportion for others."""

    kernel, weight_dtype = "w4a16", "int4"

    def __init__(self, latency_us: float = 10.0, broken: Sequence[KernelConfig] = ()) -> None:
        super().__init__(latency_us)
        self.broken, self.num_built = set(broken), 0
        self.usual_us = latency_us
        self.limits, self.spec = limits_of_spec(_h200()), _h200()

    def prepare(self, items: Sequence[Any]) -> None:
        self.num_built += len(items)

    def built(self, item: Any) -> BuiltKernel:
        return BUILT

    def weight_bytes(self, shape: Any) -> int:
        return 1024

    def bind(self, shape: Any, weight_offsets: Sequence[int]) -> Sequence[Call]:
        if shape.config in self.broken:
            raise GemmEvalError("wrong")
        self.latency_us = self.usual_us * shape.config.cta_m / 16
        return super().bind(shape, weight_offsets)


def _h200() -> Any:
    from gemm_eval.arch import load_arch

    return load_arch("h200-sxm")


class HostArray(np.ndarray[Any, Any]):
    """An array of numpy with the address that CuPy's have."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.__array_interface__["data"][0])


def _on_host(pointer: int, count: int, kind: Any) -> Any:
    size = count * np.dtype(kind).itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(pointer), kind)


def bare_runner(monkeypatch: pytest.MonkeyPatch, dtype: str = "fp16") -> W4A16Runner:
    """A runner on numpy's memory, whose kernels multiply on the CPU; those with cta_m 999 are wrong."""
    runner = W4A16Runner.__new__(W4A16Runner)
    runner.input_dtype = runner.output_dtype = dtype
    runner.activation = DType(dtype)
    runner.limits, runner.spec = limits_of_spec(_h200()), _h200()
    runner.pool_bytes, runner.buffers, runner._items = 0, {}, []
    runner._scale_mode = runner._reference = runner._bound = None
    runner.stream = nullcontext()  # type: ignore[assignment]
    runner.stream.ptr = 7
    runtime = SimpleNamespace(
        deviceSynchronize=lambda: None,
        memsetAsync=lambda address, value, count, stream: ctypes.memset(address, value, count),
    )
    runner.cupy = SimpleNamespace(asarray=np.asarray, asnumpy=np.array, cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(runner, "synchronize", lambda: None)
    monkeypatch.setattr(runner, "empty_bytes", lambda count: np.zeros(-(-count // 256) * 256, np.uint8).view(HostArray))
    monkeypatch.setattr(runner, "fill_normal", _fill_normal)
    monkeypatch.setattr(w4a16.kernels, "make_plan", _plan)
    monkeypatch.setattr(w4a16.device, "load_function", lambda *_: _run)
    monkeypatch.setattr(
        w4a16.kernels, "occupancy_of", lambda *_: SimpleNamespace(smem_bytes=1000, spill_bytes=0, ctas_per_sm=2)
    )
    return runner


def _fill_normal(buffer: Any, seed: int, *, is_bf16: bool) -> None:
    values = np.random.default_rng(seed).normal(size=buffer.nbytes // 2).astype(np.float32)
    buffer.view(np.uint16)[...] = _encode(values, is_bf16)


def _encode(values: Any, is_bf16: bool) -> Any:
    if is_bf16:
        return (values.astype(np.float32).view(np.uint32) + 0x8000 >> 16).astype(np.uint16)
    return values.astype(np.float16).view(np.uint16)


def _plan(
    sizes: Any, activation: DType, mode: WeightMode, group_size: int, config: KernelConfig, _limits: Any, *,
    is_fp8: bool,
) -> Any:  # fmt: skip
    assert not is_fp8
    variant = make_variant(config, activation, mode, group_size)
    launch = Launch((4, 1, 1), 128, 1000, 4096, 8)
    compiled = SimpleNamespace(entry="entry", cubin=b"code", registers=100)

    class Plan(tuple[Any, ...]):
        __slots__ = ()
        compiled = property(lambda self: self[2])
        launch = property(lambda self: self[1])
        arguments = property(lambda self: self[3])

    return Plan((variant, launch, compiled, lambda operands: (operands, sizes, variant)))


def _run(grid: Any, block: Any, arguments: Any, smem_bytes: int, stream: Any) -> None:
    operands, sizes, variant = arguments
    assert not _on_host(operands.counters, 8, np.uint32).any()
    is_bf16 = variant.activation is DType.BF16
    packed = _packed(operands, sizes, variant)
    bits = _on_host(operands.a, sizes.M * sizes.K, np.uint16)
    a = (bits.astype(np.uint32) << 16).view(np.float32) if is_bf16 else bits.view(np.float16)
    c = a.astype(np.float64).reshape(sizes.M, sizes.K) @ dequantize(packed)
    c *= operands.alpha
    if variant.config.cta_m == 999:
        c[0] *= 2
    _on_host(operands.c, c.size, np.uint16)[...] = _encode(c.ravel(), is_bf16)


def _packed(operands: Operands, sizes: Any, variant: Any) -> PackedW4:
    nb, kb = operands.num_column_blocks, operands.num_k_blocks
    shape = scales_shape(variant.mode, nb, operands.num_groups)
    kind = np.dtype(scales_dtype(variant.mode, variant.activation))
    words = _on_host(operands.qweight, nb * kb * 512, np.uint32).reshape(nb, kb, 4, 32, 4)
    scales = _on_host(operands.scales, int(np.prod(shape)), kind).reshape(shape)
    return PackedW4(words, scales, sizes.N, sizes.K, variant.mode, variant.group_size, variant.activation)
