"""Inductor's lowering of GEMMs on a machine without a GPU: its own candidate generators, on fake CUDA tensors.

Nothing is compiled or benchmarked: the last thing that runs is what Inductor calls to choose, which is given library
kernels only.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._inductor import config, select_algorithm
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from gemm_eval import GpuSpec, load_arch
from gemm_eval.torch import inductor_ir

H100 = "NVIDIA H100 80GB HBM3"
Lowered = list[tuple[str, list[Any]]]


@contextlib.contextmanager
def fake_gpu(name: str = H100, num_sms: int = 132, capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """Let torch, Inductor and Triton believe in a GPU; all candidates are tuned."""
    sm_arch = "sm_{}{}".format(*capability)
    spec = load_arch("h100-sxm").model_copy(update={"name": name, "num_sms": num_sms, "sm_arch": sm_arch})
    assert isinstance(spec, GpuSpec)
    with inductor_ir.fake_gpu(spec), config.patch(max_autotune=True, fx_graph_cache=False):
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
