"""From a trace to a prediction: fuse, price each kind of work once, and hang the operations on their modules."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_eval.arch import GpuSpec
from gemm_eval.estimate import Price
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.torch.fusion import Kernel, kernels_of
from gemm_eval.torch.graph import Call, Role, Trace
from gemm_eval.torch.prediction import ModulePrediction, PredictedOperation, build_tree
from gemm_eval.torch.price import UNPRICED, ModulePrices
from gemm_eval.torch.work import ConvolutionWork, VectorGemmWork, Work, work_flop
from gemm_eval.transformer import AttentionWork, MemoryWork

__all__ = ["assemble", "price_kernels"]

_MAX_NAMES = 4  # of a fused kernel


def assemble(
    trace: Trace, evaluator: GEMMEvaluator, fusion: str, attention_library: str | None, steps: Sequence[MemoryWork] = ()
) -> ModulePrediction:
    """Return what a trace takes.

    Args:
        trace: what ran.
        evaluator: of the arch.
        fusion: as for `kernels_of`.
        attention_library: of a GPU.
        steps: kernels of an optimizer, after everything.
    """
    is_gpu = isinstance(evaluator.arch, GpuSpec)
    kernels = price_kernels(kernels_of(trace, fusion, is_gpu=is_gpu), evaluator, attention_library, steps)
    operations = [operation for kernel in kernels for operation in kernel]
    return build_tree(operations, trace.modules, evaluator, fusion, attention_library)


def price_kernels(
    kernels: Sequence[Kernel], evaluator: GEMMEvaluator, attention_library: str | None, steps: Sequence[MemoryWork] = ()
) -> list[list[PredictedOperation]]:
    """Return the operations of each kernel, and of an optimizer's steps after them; arguments as of `assemble`."""
    pieces = [_pieces(kernel) for kernel in kernels]
    pieces += [[("", "optimizer", "optimizer", work)] for work in steps]
    prices = ModulePrices(evaluator, attention_library)
    prices.find(work for piece in pieces for *_, work in piece)
    found: list[list[PredictedOperation]] = []
    now_us = 0.0
    for piece in pieces:
        found.append([])
        for path, name, phase, work in piece:
            price = prices[work]
            found[-1].append(_operation(path, name, phase, work, price, now_us))
            now_us += price.latency_us
    return found


def _pieces(kernel: Kernel) -> list[tuple[str, str, str, Work]]:
    """Path, name, phase and work of what a kernel does."""
    main = _main_call(kernel.calls)
    names = list(dict.fromkeys(call.name for call in kernel.calls))
    more = [f"{len(names) - _MAX_NAMES + 1} more"] if len(names) > _MAX_NAMES else []
    shown = " + ".join([*(names[: _MAX_NAMES - 1] if more else names), *more])
    return [(main.path, shown, main.phase, work) for work in kernel.works]


def _main_call(calls: Sequence[Call]) -> Call:
    """Whose module a fused kernel is shown under: that of its reduction, else that of its last operation."""
    return next((call for call in calls if call.role is Role.REDUCTION), calls[-1])


def _operation(path: str, name: str, phase: str, work: Work, price: Price, start_us: float) -> PredictedOperation:
    flop, unmasked = work_flop(work)
    return PredictedOperation(
        path, name, phase, _kind(work, price), price.latency_us, price.low_us, price.high_us, price.bound, price.source,
        price.detail, flop, unmasked, price.num_bytes, start_us, work,
    )  # fmt: skip


def _kind(work: Work, price: Price) -> str:
    if price.bound == UNPRICED:
        return "unpriced"
    if isinstance(work, MemoryWork):
        return "memory"
    if isinstance(work, AttentionWork) or (isinstance(work, VectorGemmWork) and work.what.startswith("attention")):
        return "attention"
    return "convolution" if isinstance(work, ConvolutionWork) else "gemm"
