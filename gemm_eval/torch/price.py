"""Prices of the kernels of a trace, by the models of a model's step and models of torch's own kinds; levers."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

from gemm_eval.arch import GpuSpec, check_nvidia
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InfeasibleError, InvalidInputError, UnsupportedError
from gemm_eval.estimate import Price, Prices
from gemm_eval.evaluate import GEMMEvaluator, Lever
from gemm_eval.models.gpu import convolution_us
from gemm_eval.torch.compiled_mode import map_work
from gemm_eval.torch.fusion import Kernel, kernels_of
from gemm_eval.torch.graph import (
    CTA_ELEMENTS,
    DEALT,
    UNPRICED,
    ConvolutionWork,
    EfficientAttentionWork,
    Role,
    Trace,
    UnpricedWork,
    Work,
    dealt,
    work_flop,
)
from gemm_eval.torch.prediction import ModulePrediction, PredictedOperation, build_tree
from gemm_eval.transformer import AttentionWork, GemmWork, MemoryWork
from gemm_eval.units import bytes_per_us, cycles_per_us
from gemm_eval.workload import GemmProblem

_BACKWARD_FACTOR = 2.5  # of the memory-efficient kernel's backward pass over its forward pass: products, five to two
_MASK_CYCLES, _ODD_MASK_CYCLES, _MASK_TILE = 0.14, 0.4, 128
"""Cycles of a GPU's fused attention for each score of an SM that a mask is added to, and scores along a tile's sides.

Half as many where all queries have one mask; where keys are odd in number they are read one by one. Set by masks in
drawn modules: an H100 and an H200 give the same (of odd keys: four modules on an H100)."""
_MAX_FUSED_HEAD = 256  # elements of a head beyond which torch's fused kernels give up
_CTA_QUERIES, _STEP_KEYS = 64, 64  # of the memory-efficient kernel; of heads of more elements, twice the keys
_WARPS_PER_SM, _HALF_WARPS_PER_SM = 12, 16  # of fp32 and of 16 bits (kernel_forward.h, getWarpsPerSmFw)
_NARROW_WARPS, _WIDE_WARPS = 4, 8  # of a CTA; of longer heads
_NARROW_STEP_CYCLES, _WIDE_STEP_CYCLES, _HALF_STEP_FRAC, _ALONE_FRAC = 27_000, 20_500, 0.75, 0.6
"""Cycles of a step over keys, of all CTAs of an SM together, whatever the head: set by six calls in fp32 on an H100;
share of them in 16 bits: one call on an H100 and on an H200; share that a CTA alone takes: drawn modules on an H200."""
_BIAS_BITS, _LOAD_ELEMENTS, _LINE_ELEMENTS = 16, 8, 64  # of a GEMM with a bias; 16 and 128 bytes
_BIAS_CYCLES = 700  # to read a bias from DRAM
_BIASED_CYCLES, _ODD_BIASED_CYCLES = 0.09, 0.11  # of an element of an SM; more where rows are no whole lines
_MOST_BIASED = 100_000  # elements of an SM from which the next tiles hide it
_SERIAL_START_CYCLES, _SERIAL_CYCLES, _MAX_SERIAL_K = 4300, 15, 1280  # of a row of A by one CTA, for each of K
"""Those of 250 products with a bias in drawn modules; an H100 and an H200 give the same ones within 10%."""
_PADDED_FACTOR, _PADDING_LAUNCHES_US, _LEAST_PADDED_FLOP, _ALIGNED_BITS = 1.1, 200.0, 1e10, 128
"""How much faster a padded GEMM must be for Inductor, and a time that its launches by the host may add while compilers
keep it busy: in drawn modules GEMMs that gain more were padded, of the others some."""
_REPLAY_US = 1.75  # of a graph's start and end, which its first kernel counts: three modules of one kernel on an H200
_REFUSALS = (UnsupportedError, InvalidInputError, InfeasibleError)


class ModulePrices(Prices):
    """Prices of the work of traced modules, with intervals, sizes in words and bytes. Nothing is refused.

    Work that no model takes is `UNPRICED`. `attention_library` says whose fused kernels of GPUs run, ``"flash"`` or
    ``"cudnn"``; None: torch's choice, cuDNN's on Hopper (torch 2.11 on an H200).
    """

    def __init__(self, evaluator: GEMMEvaluator, attention_library: str | None) -> None:
        super().__init__(evaluator)
        arch = evaluator.arch
        check_nvidia(arch, "PyTorch's kernels")
        self._gpu = arch if isinstance(arch, GpuSpec) else None
        self._switch_us = cache(lambda _: 0.0)  # kernels of modules take as long as alone: an H200's drawn modules
        is_hopper = self._gpu is not None and self._gpu.sm_arch.startswith("sm_90")
        self._library = attention_library or ("cudnn" if is_hopper else "flash")
        self._dram_bytes_per_us = bytes_per_us(arch.dram_gb_per_s * arch.dram_efficiency_frac)
        one_by_one: dict[type, Callable[[Any], Price]] = {
            EfficientAttentionWork: self._efficient, ConvolutionWork: self._convolution,
            AttentionWork: self._price_one_attention, UnpricedWork: _unpriced,
        }  # fmt: skip
        self._models = {
            GemmWork: self._price_gemms, MemoryWork: self._price_memory,
            **{kind: partial(_each, price) for kind, price in one_by_one.items()},
        }  # fmt: skip

    def _price_gemms(self, works: Sequence[GemmWork]) -> list[Price]:
        try:
            prices = super()._price_gemms(works)
        except _REFUSALS as error:
            if len(works) > 1:  # some of the batch
                return [price for work in works for price in self._price_gemms([work])]
            return [self._refused(works[0].problem, error)]
        results = []
        for work, price in zip(works, prices, strict=True):
            words = filter(None, [str(work.problem), "with a bias" if work.has_bias else "", work.note])
            more_us = 0.0
            if work.has_bias and self._gpu is not None:
                more_us = _bias_us(work.problem, self._gpu, price.latency_us)
            longer = price.longer(more_us)
            results.append(longer._replace(detail=", ".join(words), num_bytes=work.problem.compulsory_bytes))
        return results

    def _price_memory(self, works: Sequence[MemoryWork]) -> list[Price]:
        prices = []
        for work, price in zip(works, super()._price_memory(works), strict=True):
            rows = "" if work.width == CTA_ELEMENTS else f", {work.rows:,} x {work.width:,}"
            prices.append(price._replace(detail=f"{work.num_bytes / 1e6:,.3g} MB{rows}", num_bytes=work.num_bytes))
        return prices

    def _refused(self, problem: GemmProblem, error: GemmEvalError) -> Price:
        """Price tf32 on a GPU without it as fp32; of other types nothing is known."""
        num_bytes = problem.compulsory_bytes
        if problem.input_dtype is problem.weight_dtype is DType.TF32 and self._gpu is not None:
            return self[GemmWork(replace(problem, input_dtype=DType.FP32, weight_dtype=DType.FP32))]
        return _unpriced(UnpricedWork(str(error), num_bytes))

    def _efficient(self, work: EfficientAttentionWork) -> Price:
        """Price the memory-efficient kernel by waves of CTAs and steps over keys, or its bytes, whichever is longer."""
        arch, problem = self._gpu, work.problem
        if arch is None:
            name = self.evaluator.arch.name
            return _unpriced(UnpricedWork(f"{name} has no model of fp32 attention", work.num_bytes))
        is_wide = max(problem.head_dim, problem.value_dim) > _STEP_KEYS
        ctas = -(-problem.q_len // _CTA_QUERIES) * problem.num_heads * problem.batch
        warps = _HALF_WARPS_PER_SM if work.is_half else _WARPS_PER_SM
        together = warps // (_WIDE_WARPS if is_wide else _NARROW_WARPS)
        whole, rest = divmod(ctas, arch.num_sms * together)
        share = -(-rest // arch.num_sms) / together  # of an SM that the last CTAs fill: few are faster
        steps: float = -(-problem.kv_len // (2 * _STEP_KEYS if is_wide else _STEP_KEYS))
        least = 1.0 if together == 1 or (whole and steps == 1) else _ALONE_FRAC
        waves = whole + (max(least, share) if rest else 0.0)
        if problem.causal:  # CTAs of the first queries stop early
            steps = (steps + 1) / 2
        step_us = (_WIDE_STEP_CYCLES if is_wide else _NARROW_STEP_CYCLES) / cycles_per_us(arch.boost_clock_ghz)
        step_us *= _HALF_STEP_FRAC if work.is_half else 1.0
        compute_us = waves * steps * step_us * (_BACKWARD_FACTOR if problem.backward else 1.0)
        memory_us = work.num_bytes / self._dram_bytes_per_us
        bound = "compute" if compute_us >= memory_us else "dram"
        sizes = str(problem) if work.is_half else f"{str(problem).removesuffix(f' {problem.dtype}')} fp32"
        latency_us = max(compute_us, memory_us) + arch.graph_node_us
        return Price(latency_us, bound, "analytic", detail=f"{sizes}, memory-efficient", num_bytes=work.num_bytes)

    def _convolution(self, work: ConvolutionWork) -> Price:
        """Price cuDNN's kernels where they are no plain GEMM; else the implicit GEMM, whose A is the input."""
        num_bytes, problem, gpu = work.read_bytes + work.write_bytes, work.problem, self._gpu
        words = f"{'depthwise ' * work.is_depthwise}convolution as {problem}"
        kernel = work.kernel
        is_tensor = kernel is not None and kernel.engine in ("tensor", "few", "weights")
        if kernel is not None and gpu is not None and (not is_tensor or kernel.dtype in gpu.tensor_flop_per_cycle):
            latency_us = convolution_us(gpu, kernel)
            bytes_us = self[MemoryWork("torch_vector", work.read_bytes, work.write_bytes)].latency_us  # as of a copy
            bound = "dram" if bytes_us > latency_us else "compute" if is_tensor else "cuda cores"
            latency_us = max(latency_us, bytes_us)
            return Price(latency_us, bound, "analytic", detail=words, num_bytes=num_bytes)
        if work.is_depthwise:
            most = max(work.read_bytes, work.write_bytes)
            price = self[dealt(DEALT, work.read_bytes, work.write_bytes, most)]._replace(source="analytic")
            return price._replace(detail=words, num_bytes=num_bytes)
        price = self[GemmWork(work.padded or problem)]
        if price.bound == UNPRICED:
            return self[GemmWork(problem)]._replace(num_bytes=num_bytes)
        if price.bound == "dram" and problem.compulsory_bytes > num_bytes:
            # DRAM gives the GEMM the bytes of the implicit A as fast as it gives those of the input
            factor = problem.compulsory_bytes / num_bytes
            arch = self.evaluator.arch
            faster = self.evaluator.on(arch.with_(dram_gb_per_s=arch.dram_gb_per_s * factor))
            runs = work.padded or problem
            price = Price.of(faster.evaluate_problem(runs))
        return price._replace(detail=words, num_bytes=num_bytes)

    def _price_one_attention(self, work: AttentionWork) -> Price:
        problem = work.problem
        fused = None if max(problem.head_dim, problem.value_dim) <= _MAX_FUSED_HEAD else False
        library = self._library if self._gpu is not None and fused is None else None
        try:
            (result,) = self.evaluator.evaluate_attention_problems([problem], fused=fused, library=library)
        except _REFUSALS as error:
            return _unpriced(UnpricedWork(str(error), problem.num_bytes + work.mask_bytes))
        latency_us = result.latency_us + work.mask_bytes / self._dram_bytes_per_us
        if work.mask_bytes and self._gpu is not None and library is not None:
            rows, columns = (-(-size // _MASK_TILE) * _MASK_TILE for size in (problem.q_len, problem.kv_len))
            scores = problem.batch * problem.num_heads * rows * columns / self._gpu.num_sms
            cycles = scores * (_ODD_MASK_CYCLES if problem.kv_len % 2 else _MASK_CYCLES)
            cycles *= 0.5 if work.is_mask_of_keys and problem.kv_len % 2 == 0 else 1.0
            latency_us += cycles / cycles_per_us(self._gpu.boost_clock_ghz)
        words = filter(None, [str(problem), result.kernel, work.note, "with a mask" if work.mask_bytes else ""])
        return Price(
            latency_us, result.bound,
            result.source, detail=", ".join(words), num_bytes=problem.num_bytes + work.mask_bytes,
        )  # fmt: skip


def _bias_us(problem: GemmProblem, arch: GpuSpec, alone_us: float) -> float:
    """Return how much longer a GEMM of 16 bits takes that adds a vector to its columns, in microseconds.

    It reads the vector before it stores a tile, and stores more slowly where rows of C are no whole lines. Rows that
    do not start on 16 bytes go to kernels of 32 x 32 elements, which cannot cut K into parts then.
    """
    per_us = cycles_per_us(arch.boost_clock_ghz)
    if problem.input_dtype.bits != _BIAS_BITS:
        return 0.0
    if problem.rows > 1 and (problem.K % _LOAD_ELEMENTS or problem.N % _LOAD_ELEMENTS):
        serial_us = (_SERIAL_START_CYCLES + min(problem.K, _MAX_SERIAL_K) * _SERIAL_CYCLES) / per_us
        return max(0.0, serial_us - alone_us)
    elements = min(problem.rows * problem.N / arch.num_sms, _MOST_BIASED)
    cycles = _BIAS_CYCLES + _BIASED_CYCLES * elements
    if problem.N % _LINE_ELEMENTS:
        cycles += _ODD_BIASED_CYCLES * elements
    return cycles / per_us


def _each(price: Callable[[Any], Price], works: Sequence[Any]) -> list[Price]:
    return [price(work) for work in works]


def _unpriced(work: UnpricedWork) -> Price:
    return Price(0.0, UNPRICED, "none", detail=work.reason, num_bytes=work.num_bytes)


_MIN_GAIN_FRAC = 0.005  # below, a change is not worth a word
_MAX_CHANGES = 32


def find_levers(evaluator: GEMMEvaluator, attention_library: str | None, works: Sequence[Work]) -> tuple[Lever, ...]:
    """Return changes of the arch with what they save, the most helpful first; of equal work once.

    The model alone is asked on both sides: nothing is learned of changed archs.
    """
    counts = Counter(works)

    def total_us(of: GEMMEvaluator) -> float:
        prices = ModulePrices(of, attention_library)
        prices.find(counts)
        return sum(count * prices[work].latency_us for work, count in counts.items() if prices[work].bound != UNPRICED)

    before, preferred = evaluator, evaluator.preferred
    if isinstance(evaluator.arch, GpuSpec):
        before = GEMMEvaluator(
            evaluator.arch, disk_cache=False, correction=False, library=preferred.library, l2=preferred.l2,
            clock=preferred.clock,
        )  # fmt: skip
    base_us = total_us(before)
    if not base_us:
        return ()
    changes: dict[str, dict[str, Any]] = {}
    for work in counts:
        if isinstance(work, GemmWork) and len(changes) < _MAX_CHANGES:
            changes.update(before.backend.changes(work.problem))
    levers = []
    for change, fields in (changes or {"dram_gb_per_s x2": {"dram_gb_per_s": 2 * before.arch.dram_gb_per_s}}).items():
        with suppress(GemmEvalError):  # a change that takes the spec out of its range helps nobody
            latency_us = total_us(before.on(before.arch.with_(**fields)))
            levers.append(Lever(change, latency_us, 1.0 - latency_us / base_us))
    levers.sort(key=lambda lever: (-lever.gain_frac, lever.change))
    return tuple(lever for lever in levers if lever.gain_frac >= _MIN_GAIN_FRAC)


_MAX_NAMES = 4  # of a fused kernel


def assemble(
    trace: Trace, evaluator: GEMMEvaluator, fusion: str, attention_library: str | None, steps: Sequence[MemoryWork] = ()
) -> ModulePrediction:
    """Return what a trace takes, fused as for `kernels_of`; `steps` are kernels of an optimizer, after everything."""
    arch = evaluator.arch
    options = {"num_sms": arch.num_sms} if isinstance(arch, GpuSpec) else {"is_gpu": False}
    kernels = kernels_of(trace, fusion, **options)
    return assemble_kernels(kernels, trace.modules, evaluator, fusion, attention_library, steps)


def assemble_kernels(
    kernels: Sequence[Kernel], modules: dict[str, str], evaluator: GEMMEvaluator, fusion: str,
    attention_library: str | None, steps: Sequence[MemoryWork] = (),
) -> ModulePrediction:  # fmt: skip
    """Return what kernels take, and those of an optimizer; `modules` has the class of each module by its path."""
    priced = price_kernels(kernels, evaluator, attention_library, steps, pads=fusion != "eager")
    operations = [operation for kernel in priced for operation in kernel]
    return build_tree(operations, modules, evaluator, fusion, attention_library)


def price_kernels(
    kernels: Sequence[Kernel], evaluator: GEMMEvaluator, attention_library: str | None,
    steps: Sequence[MemoryWork] = (), *, pads: bool = False,
) -> list[list[PredictedOperation]]:  # fmt: skip
    """Return the operations of each kernel, and of an optimizer's steps after them; arguments as of `assemble`.

    `pads`: long GEMMs whose rows are off 16 bytes are padded, as Inductor does.
    """
    prices = ModulePrices(evaluator, attention_library)
    if pads and isinstance(evaluator.arch, GpuSpec):
        kernels = [replace(kernel, works=_padded(kernel.works, prices)) for kernel in kernels]
    pieces = [_pieces(kernel) for kernel in kernels]
    pieces += [[("", "optimizer", "optimizer", work)] for work in steps]
    prices.find(work for piece in pieces for *_, work in piece)
    result: list[list[PredictedOperation]] = []
    now_us, start_us = 0.0, _REPLAY_US if isinstance(evaluator.arch, GpuSpec) else 0.0
    for piece in pieces:
        result.append([])
        for path, name, phase, work in piece:
            price = prices[work]
            if not now_us and price.bound != UNPRICED:
                price = price.longer(start_us)
            flop, unmasked = work_flop(work)
            operation = PredictedOperation(
                path, name, phase, _kind(work, price), price.latency_us, price.low_us, price.high_us, price.bound,
                price.source, price.detail, flop, unmasked, price.num_bytes, now_us, work,
            )  # fmt: skip
            result[-1].append(operation)
            now_us += price.latency_us
    return result


def _padded(works: tuple[Work, ...], prices: ModulePrices) -> tuple[Work, ...]:
    """Return a GEMM with K and N padded to 16 bytes behind a copy of B, if that is worth it; else the same works.

    Inductor's own timing decides (pad_mm.py), and includes the launches of six small kernels by the host.
    """
    gemm = works[-1] if works else None
    if not isinstance(gemm, GemmWork) or gemm.problem.flop < _LEAST_PADDED_FLOP:
        return works
    problem, unit = gemm.problem, _ALIGNED_BITS // gemm.problem.input_dtype.bits
    K, N = (-(-size // unit) * unit if size > 1 else size for size in (problem.K, problem.N))
    copy = map_work(problem.G * K * N * problem.input_dtype.bits // 8)
    padded = replace(gemm, problem=replace(problem, K=K, N=N))
    is_worth_it = padded != gemm and (
        prices[gemm].latency_us
        > (prices[padded].latency_us + prices[copy].latency_us) * _PADDED_FACTOR + _PADDING_LAUNCHES_US
    )
    return (*works[:-1], copy, padded) if is_worth_it else works


def _pieces(kernel: Kernel) -> list[tuple[str, str, str, Work]]:
    """Return path, name, phase and work of what a kernel does, under the module of its reduction or last operation."""
    main = next((call for call in kernel.calls if call.role is Role.REDUCTION), kernel.calls[-1])
    names = list(dict.fromkeys(call.name for call in kernel.calls))
    more = [f"{len(names) - _MAX_NAMES + 1} more"] if len(names) > _MAX_NAMES else []
    shown = " + ".join([*(names[: _MAX_NAMES - 1] if more else names), *more])
    return [(main.path, shown, main.phase, work) for work in kernel.works]


def _kind(work: Work, price: Price) -> str:
    if price.bound == UNPRICED:
        return "unpriced"
    if isinstance(work, MemoryWork):
        return "memory"
    if isinstance(work, AttentionWork | EfficientAttentionWork):
        return "attention"
    return "convolution" if isinstance(work, ConvolutionWork) else "gemm"
