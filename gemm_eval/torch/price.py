"""What each kernel of a trace takes: every kind of work has a model of its own; equal work is evaluated once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InfeasibleError, InvalidInputError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.models.gpu import depthwise_us, few_channels_us, implicit_gemm_us
from gemm_eval.torch.work import (
    CTA_ELEMENTS,
    DEALT,
    AttentionWork,
    ConvolutionWork,
    GemmWork,
    MemoryWork,
    UnpricedWork,
    VectorGemmWork,
    Work,
    dealt,
)
from gemm_eval.units import FLOP_PER_MAC, bytes_per_us, cycles_per_us
from gemm_eval.workload import GemmProblem

__all__ = ["UNPRICED", "Price", "Prices"]

UNPRICED = "unpriced"
"""The bound of an operation that no model knows; it counts as no time."""

_BACKWARD_FACTOR = 2.5
"""Time of attention's backward pass over that of its forward pass: that of their products, five to two."""
_MASK_FACTOR = 1.75
"""Time of a GPU's fused attention whose mask is a tensor over that without: cuDNN 1.4 to 2.1 on an H200
(arch/measured/h200-sxm/torch/kernels.csv)."""
_MAX_FUSED_HEAD = 256
"""Elements of a head beyond which torch's fused kernels give up."""
_DECISIVE_FRAC = 0.5
_LOAD_BITS = 128
"""Channels of a position that tensor cores are fed with at once."""


class Price(NamedTuple):
    """What one piece of work takes.

    Attributes:
        latency_us: time; 0 where nothing is known.
        low_us, high_us: 80% of measured times of such GEMMs lie between; None: no errors of this kind are known.
        bound: what limits it, in the word of its model, or `UNPRICED`.
        source: ``calibrated``, ``corrected``, ``analytic``, ``peak`` (neither launch nor losses are modelled but for
            the peak rate) or ``none``.
        detail: sizes and kernel, in words.
        num_bytes: compulsory: operands and results, each once.
    """

    latency_us: float
    low_us: float | None
    high_us: float | None
    bound: str
    source: str
    detail: str
    num_bytes: int


class Prices:
    """Prices of work on one arch, each computed once.

    Args:
        evaluator: of the arch.
        attention_library: whose fused kernels of GPUs: ``"flash"`` or ``"cudnn"``, as torch calls them; None: torch's
            own choice.
    """

    def __init__(self, evaluator: GEMMEvaluator, attention_library: str | None) -> None:
        self.evaluator = evaluator
        self._library = attention_library or default_attention_library(evaluator.arch)
        self._known: dict[Work, Price] = {}

    def find(self, works: Iterable[Work]) -> None:
        """Evaluate work that is new, all GEMMs at once."""
        new = [work for work in dict.fromkeys(works) if work not in self._known]
        gemms = [work for work in new if isinstance(work, GemmWork)]
        self._known.update(zip(gemms, self._gemms(gemms), strict=True))
        for work in new:
            if not isinstance(work, GemmWork):
                self._known[work] = self._price(work)

    def __getitem__(self, work: Work) -> Price:
        if work not in self._known:
            self.find([work])
        return self._known[work]

    # ---- kinds of work ---------------------------------------------------------------------------------------------

    def _gemms(self, works: Sequence[GemmWork]) -> list[Price]:
        return [self._gemm(work) for work in works]

    def _gemm(self, work: GemmWork) -> Price:
        try:
            result = self.evaluator.evaluate_problem(work.problem)
        except (UnsupportedError, InvalidInputError, InfeasibleError) as error:
            return self._refused(work, error)
        detail = f"{work.problem}, {work.note}" if work.note else str(work.problem)
        return self._of(result, detail, work.problem.compulsory_bytes)

    def _of(self, result: GEMMResult, detail: str, num_bytes: int) -> Price:
        """What a kernel takes between others."""
        more_us = self.evaluator.switch_us(result.problem.rows)
        low_us, high_us = (None if us is None else us + more_us for us in (result.low_us, result.high_us))
        return Price(result.latency_us + more_us, low_us, high_us, result.bound, result.source, detail, num_bytes)

    def _refused(self, work: GemmWork | ConvolutionWork, error: GemmEvalError) -> Price:
        """tf32 on a GPU without it is fp32; of other types nothing is known."""
        problem = work.problem
        num_bytes = problem.compulsory_bytes
        is_fp32 = problem.input_dtype is DType.TF32 and problem.weight_dtype is DType.TF32
        if is_fp32 and isinstance(self.evaluator.arch, GpuSpec):
            what = f"{problem.sizes_text} fp32"
            return self._vector(VectorGemmWork(what, problem.flop, num_bytes, problem.flop))
        return _unpriced(UnpricedWork(str(error), num_bytes))

    def _price(self, work: Work) -> Price:
        if isinstance(work, VectorGemmWork):
            return self._vector(work)
        if isinstance(work, ConvolutionWork):
            return self._convolution(work)
        if isinstance(work, AttentionWork):
            return self._attention(work)
        if isinstance(work, MemoryWork):
            return self._memory(work)
        assert isinstance(work, UnpricedWork)
        return _unpriced(work)

    def _vector(self, work: VectorGemmWork) -> Price:
        """fp32 at the peak of the CUDA cores, or its bytes, whichever takes longer, and a launch."""
        arch = self.evaluator.arch
        if not isinstance(arch, GpuSpec):
            return _unpriced(UnpricedWork(f"{arch.name} has no rate of fp32 without its matrix unit", work.num_bytes))
        rate = FLOP_PER_MAC * arch.fp32_ops_per_cycle * arch.num_sms * cycles_per_us(arch.boost_clock_ghz)
        compute_us = work.flop / rate
        memory_us = work.num_bytes / self._dram_bytes_per_us()
        latency_us = max(compute_us, memory_us) + arch.graph_node_us
        bound = "compute" if compute_us >= memory_us else "dram"
        return Price(latency_us, None, None, bound, "peak", work.what, work.num_bytes)

    def _convolution(self, work: ConvolutionWork) -> Price:
        """By cuDNN's kernels where they are no plain GEMM; else the implicit GEMM, whose A is read from the input."""
        num_bytes = work.read_bytes + work.write_bytes
        problem = work.problem
        detail = f"convolution as {problem}"
        arch = self.evaluator.arch
        if work.window and isinstance(arch, GpuSpec) and _has_own_kernel(work, arch):
            latency_us, bytes_us = self._own_kernel_us(work, arch), self._moved_us(work)
            bound = "dram" if bytes_us > latency_us else "cuda cores" if work.is_depthwise else "compute"
            latency_us = max(latency_us, bytes_us) + self.evaluator.switch_us(problem.M)
            words = f"depthwise {detail}" if work.is_depthwise else detail
            return Price(latency_us, None, None, bound, "analytic", words, num_bytes)
        if work.is_depthwise:
            price = self._memory(
                dealt(DEALT, work.read_bytes, work.write_bytes, max(work.read_bytes, work.write_bytes))
            )
            return price._replace(detail=f"depthwise {detail}", source="analytic", num_bytes=num_bytes)
        try:
            runs = work.padded or problem
            result = self.evaluator.evaluate_problem(runs)
            if problem.compulsory_bytes > num_bytes:
                result = self._fed_faster(runs, result, problem.compulsory_bytes / num_bytes)
        except (UnsupportedError, InvalidInputError, InfeasibleError) as error:
            return self._refused(work, error)._replace(num_bytes=num_bytes)
        return self._of(result, detail, num_bytes)

    def _own_kernel_us(self, work: ConvolutionWork, arch: GpuSpec) -> float:
        of = work.problem
        if work.is_depthwise:
            outputs = of.G * of.M * of.N
            return depthwise_us(arch, outputs, work.window, is_channels_first=work.is_channels_first)
        channels = of.K // work.window
        if channels * of.input_dtype.bits < _LOAD_BITS:
            return few_channels_us(arch, of.M, of.N, of.K, work.window)
        return implicit_gemm_us(arch, of.M, of.N, work.window, channels, of.input_dtype)

    def _moved_us(self, work: ConvolutionWork) -> float:
        """Its bytes, as a copy moves them."""
        return self._memory(MemoryWork("torch_vector", work.read_bytes, work.write_bytes)).latency_us

    def _fed_faster(self, problem: GemmProblem, result: GEMMResult, factor: float) -> GEMMResult:
        """The GEMM where DRAM gives it the bytes of the implicit A as fast as it gives those of the input."""
        if result.bound != "dram":
            return result
        arch = self.evaluator.arch
        faster = self.evaluator.on(arch.with_(dram_gb_per_s=arch.dram_gb_per_s * factor))
        return faster.evaluate_problem(problem)

    def _attention(self, work: AttentionWork) -> Price:
        problem = work.problem
        is_gpu = isinstance(self.evaluator.arch, GpuSpec)
        fused = None if max(problem.head_dim, problem.value_dim) <= _MAX_FUSED_HEAD else False
        library = self._library if is_gpu and fused is None else None
        try:
            (result,) = self.evaluator.evaluate_attention_problems([problem], fused=fused, library=library)
        except (UnsupportedError, InvalidInputError, InfeasibleError) as error:
            return _unpriced(UnpricedWork(str(error), problem.num_bytes + work.mask_bytes))
        latency_us = result.latency_us * (_BACKWARD_FACTOR if work.is_backward else 1.0)
        if work.mask_bytes and library is not None:
            latency_us *= _MASK_FACTOR
        elif work.mask_bytes:
            latency_us += work.mask_bytes / self._dram_bytes_per_us()
        latency_us += self.evaluator.switch_us(problem.batch * problem.q_len)
        num_bytes = problem.num_bytes * (2 if work.is_backward else 1) + work.mask_bytes
        words = [str(problem), result.kernel, work.note, "with a mask" if work.mask_bytes else ""]
        source = "analytic" if work.is_backward else result.source
        return Price(latency_us, None, None, result.bound, source, ", ".join(filter(None, words)), num_bytes)

    def _dram_bytes_per_us(self) -> float:
        arch: ArchSpec = self.evaluator.arch
        return bytes_per_us(arch.dram_gb_per_s * arch.dram_efficiency_frac)

    def _memory(self, work: MemoryWork) -> Price:
        result = self.evaluator.evaluate_memory_bound(
            work.read_bytes, work.write_bytes, work.width, work.rows, work.what
        )
        bound = "dram" if result.breakdown["bytes_us"] > _DECISIVE_FRAC * result.latency_us else "launch"
        rows = "" if work.width == CTA_ELEMENTS else f", {work.rows:,} x {work.width:,}"
        detail = f"{(work.read_bytes + work.write_bytes) / 1e6:,.3g} MB{rows}"
        num_bytes = work.read_bytes + work.write_bytes
        return Price(result.latency_us, None, None, bound, result.source, detail, num_bytes)


def _has_own_kernel(work: ConvolutionWork, arch: GpuSpec) -> bool:
    """Whether cuDNN has a kernel; on tensor cores, but for a depthwise convolution."""
    return work.is_depthwise or work.problem.input_dtype in arch.tensor_flop_per_cycle


def default_attention_library(arch: ArchSpec) -> str:
    """Whose fused attention `scaled_dot_product_attention` takes: cuDNN's on Hopper (torch 2.11, seen on an H200)."""
    return "cudnn" if isinstance(arch, GpuSpec) and arch.sm_arch.startswith("sm_90") else "flash"


def _unpriced(work: UnpricedWork) -> Price:
    return Price(0.0, None, None, UNPRICED, "none", work.reason, work.num_bytes)
