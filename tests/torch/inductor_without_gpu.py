"""Inductor's lowering of GEMMs on a machine without a GPU: its own candidate generators, on fake CUDA tensors.

What needs a driver is replaced: the properties of a device, its capability, Triton's target. Nothing is compiled or
benchmarked: the last thing that runs is what Inductor calls to choose, which is given library kernels only.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._dynamo.source import ConstantSource
from torch._inductor import config, select_algorithm
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

H100 = "NVIDIA H100 80GB HBM3"
Lowered = list[tuple[str, list[Any]]]


class TritonDriver:
    """What Inductor asks of Triton's driver while it renders templates."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.utils = types.SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": 227 << 10})

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


@contextlib.contextmanager
def fake_gpu(name: str = H100, num_sms: int = 132, capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """Let torch, Inductor and Triton believe in a GPU."""
    major, minor = capability
    properties = types.SimpleNamespace(
        name=name, major=major, minor=minor, multi_processor_count=num_sms, shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10, regs_per_multiprocessor=65536, warp_size=32, total_memory=80 << 30,
        max_threads_per_multi_processor=2048, gcnArchName="", is_integrated=0,
    )  # fmt: skip
    known = {
        "type": "cuda", "index": 0, "multi_processor_count": num_sms, "cc": 10 * major + minor, "major": major,
        "regs_per_multiprocessor": 65536, "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024,
        "warp_size": 32,
    }  # fmt: skip
    device = DeviceProperties(**{key: value for key, value in known.items() if key in DeviceProperties._fields})
    with contextlib.ExitStack() as stack:
        for function, answer in (
            ("is_available", True), ("get_device_properties", properties), ("get_device_capability", capability),
            ("current_device", 0), ("device_count", 1), ("get_device_name", name),
        ):  # fmt: skip
            stack.enter_context(mock.patch(f"torch.cuda.{function}", return_value=answer))
        stack.enter_context(mock.patch.object(DeviceProperties, "create", return_value=device))
        triton_driver = TritonDriver(10 * major + minor)
        stack.enter_context(mock.patch.object(driver, "_active", triton_driver, create=True))
        if hasattr(fake_tensor, "init_gpu_context"):
            stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", return_value=None))
        # Triton 3.9 warns where nothing says what the next one's default will be
        stack.enter_context(mock.patch.dict(os.environ, {"TRITON_DEFAULT_FP_FUSION": "1"}))
        stack.enter_context(config.patch(max_autotune=True, fx_graph_cache=False))
        yield


@contextlib.contextmanager
def recorded() -> Iterator[Lowered]:
    """Record the candidates of each GEMM as Inductor would tune them: (names of templates, candidates)."""
    seen: Lowered = []

    def keep_extern(choices: list[Any]) -> list[Any]:
        seen.append((choices[0].name, list(choices)))
        return [choice for choice in choices if isinstance(choice, select_algorithm.ExternKernelCaller)][:1]

    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
    functions.append(keep_extern)
    try:
        yield seen
    finally:
        functions.remove(keep_extern)


def lower(
    function: Callable[..., Any], *tensors: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
) -> list[list[Any]]:
    """Lower a function of tensors (sizes, strides, type) and return the candidates of each GEMM."""
    with fake_tensor.FakeTensorMode() as mode:
        inputs = [torch.empty_strided(sizes, strides, dtype=dtype, device="cuda") for sizes, strides, dtype in tensors]
        graph = make_fx(function)(*inputs)
        lowering = GraphLowering(graph, example_inputs=inputs)
        with V.set_graph_handler(lowering), V.set_fake_mode(mode), recorded() as seen:
            lowering.run(*inputs)
    return [choices for _, choices in seen]


def lower_mm_of_any_rows(rows_hint: int, k: int, n: int) -> list[list[Any]]:
    """The same for a product of bf16 whose rows are a symbol, with a hint."""
    shapes = ShapeEnv()
    with fake_tensor.FakeTensorMode(shape_env=shapes) as mode:
        symbol = shapes.create_symbol(rows_hint, source=ConstantSource("rows"), dynamic_dim=DimDynamic.DYNAMIC)
        m = shapes.create_symintnode(symbol, hint=rows_hint)
        a = torch.empty_strided((m, k), (k, 1), dtype=torch.bfloat16, device="cuda")
        b = torch.empty_strided((k, n), (1, k), dtype=torch.bfloat16, device="cuda")
        graph = make_fx(lambda a, b: torch.mm(a, b), tracing_mode="symbolic")(a, b)
        lowering = GraphLowering(graph, example_inputs=[a, b], shape_env=shapes)
        with V.set_graph_handler(lowering), V.set_fake_mode(mode), recorded() as seen:
            lowering.run(a, b)
    return [choices for _, choices in seen]


def rows(m: int, n: int, dtype: torch.dtype = torch.bfloat16) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return (m, n), (n, 1), dtype


def columns(
    m: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """As a linear's weight is, transposed."""
    return (m, n), (1, m), dtype


def templates(choices: list[Any]) -> list[Any]:
    return [choice for choice in choices if isinstance(choice, select_algorithm.TritonTemplateCaller)]


def externs(choices: list[Any]) -> list[str]:
    return [c.name for c in choices if isinstance(c, select_algorithm.ExternKernelCaller)]


def tile(choice: Any) -> tuple[int, ...]:
    """(m, n, k, warps, stages) of a template's candidate."""
    info = choice.info_dict()
    m, k, n = (int(size) for size in str(info["tile_shape"]).strip("()").split(","))
    return m, n, k, info["num_warps"], info["num_stages"]
