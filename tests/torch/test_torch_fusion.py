"""What runs as one kernel: on traces written by hand, without torch."""

from __future__ import annotations

import pytest

from gemm_eval.errors import InvalidOptionError
from gemm_eval.torch.fusion import Kernel, kernels_of
from gemm_eval.torch.graph import Access, Call, Domain, Role, Trace, UnpricedWork
from gemm_eval.transformer import MemoryWork

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
    assert kernel.works == (MemoryWork("inductor_rows", 2 * BIG + 2 * ROWS, 2 * BIG, ROWS, BIG // ROWS),)


def test_sums_over_other_rows_are_other_kernels() -> None:
    calls = [
        call("rows", Role.REDUCTION, "x", "1", BIG, ROWS, **{"1": 2 * ROWS}),
        call("columns", Role.REDUCTION, "x", "2", BIG, ROWS, is_inner=False, **{"2": 2 * ROWS}),
    ]
    assert [kernel for kernel, *_ in fused(calls, "x 1 2")] == ["rows", "columns"]


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
