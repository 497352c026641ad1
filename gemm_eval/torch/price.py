"""Prices of the kernels of a trace: GEMMs and memory-bound kernels as of a model's step, and torch's own kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InfeasibleError, InvalidInputError, UnsupportedError
from gemm_eval.estimate import Price, Prices, price_of
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.models.gpu import depthwise_us, few_channels_us, implicit_gemm_us
from gemm_eval.torch.work import CTA_ELEMENTS, DEALT, ConvolutionWork, UnpricedWork, VectorGemmWork, dealt
from gemm_eval.transformer import AttentionWork, GemmWork, MemoryWork
from gemm_eval.units import FLOP_PER_MAC, bytes_per_us, cycles_per_us
from gemm_eval.workload import GemmProblem

UNPRICED = "unpriced"
"""The bound of an operation that no model knows; it counts as no time."""

_BACKWARD_FACTOR = 2.5
"""Time of attention's backward pass over that of its forward pass: that of their products, five to two."""
_MASK_FACTOR = 1.75
"""Time of a GPU's fused attention whose mask is a tensor over that without: cuDNN 1.4 to 2.1 on an H200
(arch/measured/h200-sxm/torch/kernels.csv)."""
_MAX_FUSED_HEAD = 256
"""Elements of a head beyond which torch's fused kernels give up."""
_LOAD_BITS = 128
"""Channels of a position that tensor cores are fed with at once."""
_REFUSALS = (UnsupportedError, InvalidInputError, InfeasibleError)


class ModulePrices(Prices):
    """Prices of the work of traced modules, with intervals, sizes in words and bytes. Nothing is refused.

    Work that no model takes is `UNPRICED`. The source of work without tensor cores is ``peak``: only the peak rate is
    known.

    Args:
        evaluator: of the arch.
        attention_library: whose fused kernels of GPUs: ``"flash"`` or ``"cudnn"``, as torch calls them; None: torch's
            own choice.
    """

    has_intervals = True

    def __init__(self, evaluator: GEMMEvaluator, attention_library: str | None) -> None:
        super().__init__(evaluator)
        self._library = attention_library or default_attention_library(evaluator.arch)

    @property
    def _models(self) -> Mapping[type, Callable[[Sequence[Any]], Sequence[Price]]]:
        single = {VectorGemmWork: self._vector, ConvolutionWork: self._convolution, AttentionWork: self._attention,
                  UnpricedWork: _unpriced}  # fmt: skip
        return {
            GemmWork: self._price_gemms, MemoryWork: self._price_memory,
            **{kind: lambda works, price=price: [price(work) for work in works] for kind, price in single.items()},
        }  # fmt: skip

    def _price_gemms(self, works: Sequence[GemmWork]) -> list[Price]:
        try:
            prices = super()._price_gemms(works)
        except _REFUSALS as error:
            if len(works) > 1:  # some of the batch
                return [price for work in works for price in self._price_gemms([work])]
            return [self._refused(works[0].problem, error)]
        return [
            price._replace(
                detail=f"{work.problem}, {work.note}" if work.note else str(work.problem),
                num_bytes=work.problem.compulsory_bytes,
            )
            for work, price in zip(works, prices, strict=True)
        ]

    def _price_memory(self, works: Sequence[MemoryWork]) -> list[Price]:
        prices = []
        for work, price in zip(works, super()._price_memory(works), strict=True):
            rows = "" if work.width == CTA_ELEMENTS else f", {work.rows:,} x {work.width:,}"
            prices.append(price._replace(detail=f"{work.num_bytes / 1e6:,.3g} MB{rows}", num_bytes=work.num_bytes))
        return prices

    def _refused(self, problem: GemmProblem, error: GemmEvalError) -> Price:
        """Price tf32 on a GPU without it as fp32; of other types nothing is known."""
        is_fp32 = problem.input_dtype is DType.TF32 and problem.weight_dtype is DType.TF32
        if is_fp32 and isinstance(self.evaluator.arch, GpuSpec):
            what = f"{problem.sizes_text} fp32"
            return self._vector(VectorGemmWork(what, problem.flop, problem.compulsory_bytes, problem.flop))
        return _unpriced(UnpricedWork(str(error), problem.compulsory_bytes))

    def _vector(self, work: VectorGemmWork) -> Price:
        """Price fp32 by the peak of the CUDA cores, or its bytes, whichever takes longer, and a launch."""
        arch = self.evaluator.arch
        if not isinstance(arch, GpuSpec):
            return _unpriced(UnpricedWork(f"{arch.name} has no rate of fp32 without its matrix unit", work.num_bytes))
        rate = FLOP_PER_MAC * arch.fp32_ops_per_cycle * arch.num_sms * cycles_per_us(arch.boost_clock_ghz)
        compute_us, memory_us = work.flop / rate, work.num_bytes / self._dram_bytes_per_us()
        bound = "compute" if compute_us >= memory_us else "dram"
        latency_us = max(compute_us, memory_us) + arch.graph_node_us
        return Price(latency_us, bound, "peak", detail=work.what, num_bytes=work.num_bytes)

    def _convolution(self, work: ConvolutionWork) -> Price:
        """Price cuDNN's kernels where they are no plain GEMM; else the implicit GEMM, whose A is the input."""
        num_bytes, problem, arch = work.read_bytes + work.write_bytes, work.problem, self.evaluator.arch
        detail = f"convolution as {problem}"
        words = f"depthwise {detail}" if work.is_depthwise else detail
        if work.window and isinstance(arch, GpuSpec) and _has_own_kernel(work, arch):
            latency_us = _own_kernel_us(work, arch)
            bytes_us = self[MemoryWork("torch_vector", work.read_bytes, work.write_bytes)].latency_us  # as of a copy
            bound = "dram" if bytes_us > latency_us else "cuda cores" if work.is_depthwise else "compute"
            latency_us = max(latency_us, bytes_us) + self.evaluator.switch_us(problem.M)
            return Price(latency_us, bound, "analytic", detail=words, num_bytes=num_bytes)
        if work.is_depthwise:
            most = max(work.read_bytes, work.write_bytes)
            price = self[dealt(DEALT, work.read_bytes, work.write_bytes, most)]
            return price._replace(detail=words, source="analytic", num_bytes=num_bytes)
        price = self[GemmWork(work.padded or problem)]
        if price.bound == UNPRICED or price.source == "peak":
            refused = self[GemmWork(problem)]
            return refused._replace(num_bytes=num_bytes)
        if price.bound == "dram" and problem.compulsory_bytes > num_bytes:
            # DRAM gives the GEMM the bytes of the implicit A as fast as it gives those of the input
            factor = problem.compulsory_bytes / num_bytes
            faster = self.evaluator.on(arch.with_(dram_gb_per_s=arch.dram_gb_per_s * factor))
            runs = work.padded or problem
            price = self._between(price_of(faster.evaluate_problem(runs)), runs.rows)
        return price._replace(detail=detail, num_bytes=num_bytes)

    def _attention(self, work: AttentionWork) -> Price:
        problem, arch = work.problem, self.evaluator.arch
        fused = None if max(problem.head_dim, problem.value_dim) <= _MAX_FUSED_HEAD else False
        library = self._library if isinstance(arch, GpuSpec) and fused is None else None
        try:
            (result,) = self.evaluator.evaluate_attention_problems([problem], fused=fused, library=library)
        except _REFUSALS as error:
            return _unpriced(UnpricedWork(str(error), problem.num_bytes + work.mask_bytes))
        latency_us = result.latency_us * (_BACKWARD_FACTOR if work.is_backward else 1.0)
        if work.mask_bytes and library is not None:
            latency_us *= _MASK_FACTOR
        elif work.mask_bytes:
            latency_us += work.mask_bytes / self._dram_bytes_per_us()
        words = filter(None, [str(problem), result.kernel, work.note, "with a mask" if work.mask_bytes else ""])
        return Price(
            latency_us + self.evaluator.switch_us(problem.batch * problem.q_len), result.bound,
            "analytic" if work.is_backward else result.source, detail=", ".join(words),
            num_bytes=problem.num_bytes * (2 if work.is_backward else 1) + work.mask_bytes,
        )  # fmt: skip

    def _dram_bytes_per_us(self) -> float:
        arch = self.evaluator.arch
        return bytes_per_us(arch.dram_gb_per_s * arch.dram_efficiency_frac)


def _own_kernel_us(work: ConvolutionWork, arch: GpuSpec) -> float:
    """Return the time of cuDNN's kernel of its own for a convolution, apart from its bytes, in microseconds."""
    problem = work.problem
    if work.is_depthwise:
        outputs = problem.G * problem.M * problem.N
        return depthwise_us(arch, outputs, work.window, is_channels_first=work.is_channels_first)
    channels = problem.K // work.window
    if channels * problem.input_dtype.bits < _LOAD_BITS:
        return few_channels_us(arch, problem.M, problem.N, problem.K, work.window)
    return implicit_gemm_us(arch, problem.M, problem.N, work.window, channels, problem.input_dtype)


def _has_own_kernel(work: ConvolutionWork, arch: GpuSpec) -> bool:
    """Say whether cuDNN has a kernel; on tensor cores, but for a depthwise convolution."""
    return work.is_depthwise or work.problem.input_dtype in arch.tensor_flop_per_cycle


def default_attention_library(arch: ArchSpec) -> str:
    """Return whose fused attention `scaled_dot_product_attention` takes: cuDNN's on Hopper (torch 2.11 on an H200)."""
    return "cudnn" if isinstance(arch, GpuSpec) and arch.sm_arch.startswith("sm_90") else "flash"


def _unpriced(work: UnpricedWork) -> Price:
    return Price(0.0, UNPRICED, "none", detail=work.reason, num_bytes=work.num_bytes)
