"""Without torch: models that price work, what has no answer, and kernels of traces that are written by hand."""

from dataclasses import replace

import pytest

from gemm_eval import AttentionProblem, GEMMEvaluator, GemmProblem, load_arch
from gemm_eval.errors import InvalidOptionError
from gemm_eval.torch.compiled_mode import num_splits
from gemm_eval.torch.fusion import Kernel, kernels_of
from gemm_eval.torch.graph import (
    UNPRICED,
    Access,
    Call,
    ConvolutionWork,
    Domain,
    EfficientAttentionWork,
    Role,
    Trace,
    UnpricedWork,
    dealt,
    work_flop,
)
from gemm_eval.torch.price import ModulePrices, find_levers
from gemm_eval.transformer import AttentionWork, GemmWork, MemoryWork

H200 = GEMMEvaluator("h200-sxm", disk_cache=False)
PRICES = ModulePrices(H200, "flash")
FULL = AttentionProblem(2, 1024, 1024, 16, 16, 64, causal=False)  # type: ignore[arg-type]
CONV = GemmProblem(1, 100352, 576, 64, "bf16")  # type: ignore[arg-type]


def conv(problem: GemmProblem = CONV, **options: object) -> ConvolutionWork:
    moved = problem.M * 64 * 2  # of an input that has as many channels as there are filters, at stride 1
    return ConvolutionWork(problem, moved + 2 * problem.K * problem.N, moved, **options)  # type: ignore[arg-type]


def test_a_gemm_has_the_price_interval_and_bound_of_the_evaluator() -> None:
    problem = GemmProblem(1, 512, 4096, 4096, "bf16")  # type: ignore[arg-type]
    price, result = PRICES[GemmWork(problem)], H200.evaluate_problem(problem)
    assert (price.latency_us, price.low_us, price.high_us) == (result.latency_us, result.low_us, result.high_us)
    assert (price.bound, price.source) == (result.bound, result.source)
    assert price.num_bytes == problem.compulsory_bytes == 2 * (512 * 4096 * 2 + 4096 * 4096)


def test_equal_work_is_evaluated_once() -> None:
    fresh = GEMMEvaluator("h200-sxm", disk_cache=False)
    prices = ModulePrices(fresh, "flash")
    works = [GemmWork(GemmProblem(1, 64, 1024, 1024, "bf16")) for _ in range(100)]  # type: ignore[arg-type]
    prices.find(works)
    assert fresh.cache_info().records.misses == 1


def test_the_input_of_a_convolution_is_not_read_for_each_place_of_the_window() -> None:
    """A of the implicit GEMM has nine times the bytes of the input, and DRAM has them once."""
    implicit, plain = PRICES[conv()], H200.evaluate_problem(CONV)
    moved = H200.evaluate_memory_bound(conv().read_bytes, conv().write_bytes, what="act")
    assert plain.bound == "dram"
    assert moved.latency_us <= implicit.latency_us < 0.75 * plain.latency_us
    assert work_flop(conv()) == (CONV.flop, CONV.flop)


def test_a_convolution_with_a_window_of_one_is_a_gemm() -> None:
    problem = GemmProblem(1, 100352, 64, 256, "bf16")  # type: ignore[arg-type]
    work = ConvolutionWork(problem, 2 * (100352 * 64 + 64 * 256), 2 * 100352 * 256)
    assert PRICES[work].latency_us == pytest.approx(H200.evaluate_problem(problem).latency_us)


def test_few_channels_are_filled_up() -> None:
    stem = GemmProblem(1, 100352, 147, 64, "bf16")  # type: ignore[arg-type]
    padded = GemmProblem(1, 100352, 196, 64, "bf16")  # type: ignore[arg-type]
    work = ConvolutionWork(stem, 2 * 100352 * 12, 2 * 100352 * 64, padded=padded)
    assert PRICES[work].latency_us < H200.evaluate_problem(stem).latency_us
    assert work_flop(work)[0] == stem.flop


def test_a_depthwise_convolution_takes_its_bytes() -> None:
    problem = GemmProblem(64, 100352, 9, 1, "bf16")  # type: ignore[arg-type]
    work = ConvolutionWork(problem, 13_000_000, 12_845_056, is_depthwise=True)
    moved = PRICES[dealt("act", 13_000_000, 12_845_056, 13_000_000)]
    assert PRICES[work].latency_us == moved.latency_us
    assert 25_845_056 / 4.8e6 < moved.latency_us < 25_845_056 / 4.8e6 + 6


def test_gradients_of_attention_are_those_of_its_library() -> None:
    gradients = replace(FULL, backward=True)
    (alone,) = H200.evaluate_attention_problems([gradients], library="flash")
    assert PRICES[AttentionWork(gradients)].latency_us == pytest.approx(alone.latency_us)
    assert work_flop(AttentionWork(gradients))[0] == 2.5 * work_flop(AttentionWork(FULL))[0]


def test_a_mask_is_read() -> None:
    masked = PRICES[AttentionWork(FULL, mask_bytes=64 << 20)]
    assert masked.latency_us > PRICES[AttentionWork(FULL)].latency_us + 10
    assert masked.num_bytes == FULL.num_bytes + (64 << 20)


def test_heads_that_no_fused_kernel_takes_are_not_fused() -> None:
    problem = AttentionProblem(1, 4096, 4096, 1, 1, 512, causal=False)
    price = PRICES[AttentionWork(problem)]
    unfused = H200.evaluate_attention_problems([problem], fused=False)[0]
    assert (price.latency_us, price.bound) == (unfused.latency_us, unfused.bound)


@pytest.mark.parametrize(
    ("arch", "library"), [("h100-sxm", "cudnn"), ("h200-sxm", "cudnn"), ("a100-sxm-80gb", "flash"), ("b200", "flash")]
)
def test_attention_is_whose_torch_takes(arch: str, library: str) -> None:
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    own, named = (ModulePrices(evaluator, name)[AttentionWork(FULL)] for name in (None, library))
    assert own == named


def test_fp32_attention_takes_waves_of_ctas_and_steps_over_keys() -> None:
    """Calls of torch's memory-efficient kernel on an H100 with its profiler, in microseconds; q_len of 36 to 117."""
    prices = ModulePrices(GEMMEvaluator("h100-sxm", disk_cache=False), None)
    for sizes, measured_us in (
        ((378, 16, 16, 4, 4, 36), 58.8), ((93, 100, 100, 6, 6, 32), 89.2), ((28, 117, 117, 18, 18, 32), 86.3),
        ((100, 64, 64, 4, 4, 64), 32.1), ((12, 36, 36, 2, 2, 128), 12.0), ((28, 50, 50, 4, 4, 128), 12.8),
    ):  # fmt: skip
        price = prices[EfficientAttentionWork(AttentionProblem(*sizes, causal=False), 1 << 20)]
        assert price.latency_us == pytest.approx(measured_us, rel=0.1), sizes
    one = prices[EfficientAttentionWork(AttentionProblem(8, 2048, 2048, 8, 8, 64, causal=False), 1)]
    causal = prices[EfficientAttentionWork(AttentionProblem(8, 2048, 2048, 8, 8, 64), 1)]
    assert 0.5 < causal.latency_us / one.latency_us < 0.55
    assert prices[EfficientAttentionWork(AttentionProblem(8, 1, 1, 8, 8, 64), 1 << 32)].bound == "dram"


def test_tf32_on_a_gpu_without_it_is_fp32() -> None:
    problem = GemmProblem(1, 4096, 4096, 4096, "tf32")  # type: ignore[arg-type]
    prices = ModulePrices(GEMMEvaluator("t4", disk_cache=False), "flash")
    price = prices[GemmWork(problem)]
    assert "fp32" in price.detail
    assert price.latency_us > problem.flop / 8.2e6  # T4: 8.1 TFLOP/s of fp32 at its boost clock


def test_what_no_model_knows_is_said() -> None:
    bf16 = ModulePrices(GEMMEvaluator("t4", disk_cache=False), "flash")[GemmWork(CONV)]
    assert (bf16.bound, bf16.latency_us) == (UNPRICED, 0.0)
    assert "bf16" in bf16.detail
    assert PRICES[UnpricedWork("no model of fft", 64)].detail == "no model of fft"


def test_multicore_chips_answer_too() -> None:
    prices = ModulePrices(GEMMEvaluator("demo-8core", disk_cache=False), "flash")
    works = [GemmWork(GemmProblem(1, 64, 512, 512, "fp16")), MemoryWork("elementwise", 1 << 20, 1 << 20)]  # type: ignore[arg-type]
    works_too = [
        conv(GemmProblem(1, 4096, 576, 64, "fp16")),
        AttentionWork(AttentionProblem(1, 64, 64, 4, 4, 64, "fp16")),
    ]  # type: ignore[arg-type]
    for work in (*works, *works_too):
        price = prices[work]
        assert price.bound != UNPRICED
        assert price.latency_us > 0
        assert price.low_us is None or price.low_us < price.latency_us < price.high_us
    assert prices[EfficientAttentionWork(AttentionProblem(1, 64, 64, 4, 4, 64), 2)].bound == UNPRICED


def test_levers_are_those_of_everything_together() -> None:
    gemm = GemmWork(GemmProblem(1, 16, 8192, 8192, "bf16"))  # type: ignore[arg-type]
    levers = find_levers(H200, "flash", [gemm] * 3)
    assert levers[0].change == "dram_gb_per_s x2"
    alone = GEMMEvaluator("h200-sxm", disk_cache=False, correction=False)
    arch = load_arch("h200-sxm")
    faster = alone.on(arch.with_(dram_gb_per_s=2 * arch.dram_gb_per_s)).evaluate_problem(gemm.problem)  # type: ignore[union-attr]
    assert levers[0].latency_us == pytest.approx(3 * faster.latency_us)
    assert [lever.gain_frac for lever in levers] == sorted((lever.gain_frac for lever in levers), reverse=True)


BIG, ROWS = 1 << 20, 1 << 10
SIZES = {"x": 2 * BIG, "y": 2 * BIG, "w": 2 * ROWS, "stats": 2 * ROWS}
BUFFERS: dict[str, int] = {}


def buffer(name: str) -> int:
    return BUFFERS.setdefault(name, len(BUFFERS))


def call(name: str, role: Role, reads: str, writes: str, num: int = BIG, rows: int | None = None, *,
         is_inner: bool = True, **sizes: int) -> Call:  # fmt: skip
    """An operation on tensors of 16-bit elements; `sizes`: bytes of those that are not of `num` elements."""

    def accesses(names: str) -> tuple[Access, ...]:
        return tuple(Access(buffer(one), sizes.get(one, 2 * num)) for one in names.split())

    works = (UnpricedWork("extern", 1),) if role is Role.EXTERN else ()
    return Call(name, "", "forward", role, Domain(num, rows, is_inner), accesses(reads), accesses(writes), works)


def elementwise(name: str, reads: str, writes: str, num: int = BIG, **sizes: int) -> Call:
    return call(name, Role.ELEMENTWISE, reads, writes, num, **sizes)


def extern(reads: str, writes: str) -> Call:
    return call("mm", Role.EXTERN, reads, writes)


def fused(calls: list[Call], kept: str) -> list[tuple[str, int, int]]:
    """Names of each kernel, and bytes that it reads and writes."""
    kernels = kernels_of(Trace(calls, {buffer(name) for name in kept.split()}), "inductor")
    return [(names(kernel), *in_and_out(kernel)) for kernel in kernels]


def names(kernel: Kernel) -> str:
    return " ".join(one.name for one in kernel.calls)


def in_and_out(kernel: Kernel) -> tuple[int, int]:
    (work,) = kernel.works
    return (work.read_bytes, work.write_bytes) if isinstance(work, MemoryWork) else (0, 0)


def test_a_chain_is_one_kernel_that_reads_and_writes_once() -> None:
    calls = [elementwise("a", "x", "1"), elementwise("b", "1 y", "2"), elementwise("c", "2", "out")]
    assert fused(calls, "x y out") == [("a b c", 4 * BIG, 2 * BIG)]
    eager = kernels_of(Trace(calls, {buffer("x"), buffer("y"), buffer("out")}), "eager")
    assert [in_and_out(kernel) for kernel in eager] == [(2 * BIG, 2 * BIG), (4 * BIG, 2 * BIG), (2 * BIG, 2 * BIG)]


def test_what_others_read_is_written() -> None:
    calls = [elementwise("a", "x", "1"), elementwise("b", "1", "2"), extern("1", "3"), elementwise("c", "2 3", "out")]
    assert fused(calls, "x out") == [("a b", 2 * BIG, 4 * BIG), ("mm", 0, 0), ("c", 4 * BIG, 2 * BIG)]


def test_nothing_fuses_around_a_gemm() -> None:
    """The sum needs the GEMM, which needs the first operation: one kernel would wait for itself."""
    calls = [elementwise("act", "x", "1"), extern("1", "2"), elementwise("add", "1 2", "out")]
    assert [kernel for kernel, *_ in fused(calls, "x out")] == ["act", "mm", "add"]


def test_a_norm_is_one_kernel_and_has_a_row_for_each_sum() -> None:
    calls = [
        elementwise("pow", "x", "1"), call("mean", Role.REDUCTION, "1", "2", BIG, ROWS, **{"2": 2 * ROWS}),
        elementwise("rsqrt", "2", "3", ROWS), elementwise("mul", "x 3 w", "out", w=2 * ROWS, **{"3": 2 * ROWS}),
    ]  # fmt: skip
    (kernel,) = kernels_of(Trace(calls, {buffer(name) for name in ("x", "w", "out")}), "inductor")
    assert names(kernel) == "pow mean rsqrt mul"
    assert kernel.works == (MemoryWork("inductor_rows 14", 2 * BIG + 2 * ROWS, 2 * BIG, ROWS, BIG // ROWS),)


def test_sums_over_other_rows_are_other_kernels() -> None:
    calls = [
        call("rows", Role.REDUCTION, "x", "1", BIG, ROWS, **{"1": 2 * ROWS}),
        call("columns", Role.REDUCTION, "x", "2", BIG, ROWS, is_inner=False, **{"2": 2 * ROWS}),
    ]
    assert [kernel for kernel, *_ in fused(calls, "x 1 2")] == ["rows", "columns", "columns"]  # in parts


@pytest.mark.parametrize(
    ("rows", "width", "is_inner", "splits"),
    [(56, 129024, False, 1008), (56, 1008, False, 8), (112, 896, False, 7),
     (72, 1994496, False, 974), (72, 974, False, 8), (60, 443904, True, 10), (1, 39068160, True, 527),
     (448, 16128, True, 1), (112, 200704, True, 7), (784, 28672, False, 128)],
)  # fmt: skip
def test_sums_are_split_as_in_code_that_inductor_made_for_an_h100(
    rows: int, width: int, is_inner: bool, splits: int
) -> None:
    assert num_splits(rows, width, 132, is_inner=is_inner) == splits


def test_sums_of_the_same_rows_read_once() -> None:
    calls = [
        call("sum", Role.REDUCTION, "x", "1", BIG, ROWS, **{"1": 2 * ROWS}),
        call("max", Role.REDUCTION, "x", "2", BIG, ROWS, **{"2": 2 * ROWS}),
    ]
    assert fused(calls, "x 1 2") == [("sum max", 2 * BIG, 4 * ROWS)]


def test_a_broadcast_is_computed_where_it_is_needed_if_nobody_else_needs_it() -> None:
    small = elementwise("cast", "w", "1", ROWS)
    one = [small, elementwise("mul", "x 1", "out", **{"1": 2 * ROWS})]
    assert fused(one, "x w out") == [("cast mul", 2 * BIG + 2 * ROWS, 2 * BIG)]
    two = [small, extern("1", "2"), elementwise("mul", "x 1 2", "out", **{"1": 2 * ROWS})]
    assert [kernel for kernel, *_ in fused(two, "x w out")] == ["cast", "mm", "mul"]


def test_constants_cost_nothing_where_a_kernel_computes_them() -> None:
    zeros = call("zeros", Role.CONSTANT, "", "1")
    assert fused([zeros, elementwise("add", "x 1", "out")], "x out") == [("add", 2 * BIG, 2 * BIG)]
    assert fused([zeros, extern("1", "out")], "out") == [("zeros", 0, 2 * BIG), ("mm", 0, 0)]


def test_what_nobody_reads_does_not_run_but_in_eager_mode() -> None:
    calls = [elementwise("a", "x", "1"), elementwise("b", "1", "2"), elementwise("c", "x", "out")]
    assert fused(calls, "x out") == [("c", 2 * BIG, 2 * BIG)]
    assert len(kernels_of(Trace(calls, {buffer("x"), buffer("out")}), "eager")) == 3


def test_a_window_needs_its_input_in_memory() -> None:
    calls = [
        elementwise("relu", "x", "1"),
        call("pool", Role.WINDOW, "1", "2", BIG // 4, **{"1": 2 * BIG}),
        elementwise("neg", "2", "out", BIG // 4),
    ]
    assert fused(calls, "x out") == [("relu", 2 * BIG, 2 * BIG), ("pool neg", 2 * BIG, BIG // 2)]


def test_in_place_operations_fuse_and_write_what_is_seen() -> None:
    calls = [extern("x", "1"), elementwise("norm", "1", "2"), elementwise("relu_", "2", "2"), extern("2", "out")]
    assert fused(calls, "x out")[1:2] == [("norm relu_", 2 * BIG, 2 * BIG)]


def test_a_part_that_is_written_stands_beside_what_was_there() -> None:
    """Of a cache a few rows are written; who reads it afterwards waits for that, and it is written whatever happens."""
    calls = [
        elementwise("rope", "x", "1", ROWS),
        elementwise("index_copy_", "1", "cache", ROWS),
        extern("cache", "out"),
    ]
    assert fused(calls, "x cache out") == [("rope index_copy_", 2 * ROWS, 2 * ROWS), ("mm", 0, 0)]


def test_kernels_stay_in_an_order_in_which_they_can_run() -> None:
    calls = [elementwise("a", "x", "1"), extern("1", "2"), elementwise("b", "x 2", "3"), extern("3", "out")]
    done: set[int] = {buffer("x")}
    for kernel in kernels_of(Trace(calls, {buffer("x"), buffer("out")}), "inductor"):
        made = {access.buffer for one in kernel.calls for access in one.writes}
        assert {access.buffer for one in kernel.calls for access in one.reads} - made <= done
        done |= made


def test_no_kernel_has_more_operations_than_inductor_fuses() -> None:
    chain = [elementwise(f"op{i}", f"t{i}", f"t{i + 1}") for i in range(150)]
    kernels = kernels_of(Trace(chain, {buffer("t0"), buffer("t150")}), "inductor")
    assert [len(kernel.calls) for kernel in kernels] == [64, 64, 22]


def test_fusion_is_a_word() -> None:
    with pytest.raises(InvalidOptionError, match="fusion must be"):
        kernels_of(Trace(), "nvfuser")
