"""Grouped W4A16 kernels on a real GPU, against float64: right to rounding, repeatable, writing rows of groups alone."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from gemm_eval.device import runtime
from gemm_eval.dtypes import DType
from gemm_eval.kernels import (
    DeviceLimits,
    GroupedW4,
    Sizes,
    dequantize,
    make_variant,
    pack_w4,
    stack_w4,
    w4a16_gemm,
    w4a16_grouped_gemm,
    workspace_bytes,
)
from gemm_eval.kernels.families import Variant, grouped_families
from gemm_eval.kernels.registry import why_not
from gemm_eval.mapping import Decomposition, KernelConfig
from tests.gpu.test_w4a16_gpu import GUARD_ELEMS, NAN_BITS, WORST_ERROR, to_bits, to_float

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CONFIGS = [config for family in grouped_families().values() for config in family.configs()]
RAGGED = (0, 5, 0, 0, 130, 1, 0, 33)
SAMPLE = [
    ("fp16", "group", 32, 200, 328), ("fp16", "group", 64, 136, 72), ("fp16", "group_zero", 128, 1032, 184),
    ("bf16", "group_zero", 32, 328, 264), ("bf16", "group", 128, 520, 520), ("fp16", "column", None, 584, 136),
    ("bf16", "column", None, 8, 8), ("fp16", "mxfp4", 32, 200, 328), ("bf16", "mxfp4", 32, 1032, 136),
    ("fp16", "nvfp4", 16, 584, 264), ("bf16", "nvfp4", 16, 136, 520),
]  # fmt: skip


class Case(NamedTuple):
    """One grouped GEMM with random data; `expected` has the rows of all groups."""

    A: Any
    packed: GroupedW4
    offsets: Any
    bias: Any
    expected: Any


@pytest.fixture(scope="module")
def limits(cupy: Any) -> DeviceLimits:
    return runtime.limits_of_device(runtime.current_device())


_stacked: dict[tuple[Any, ...], tuple[GroupedW4, Any]] = {}


def weights_of(num: int, K: int, N: int, activation: str, mode: str, group_size: int | None) -> tuple[GroupedW4, Any]:
    key = num, K, N, activation, mode, group_size
    if key not in _stacked:
        random = np.random.default_rng(3)
        made = []
        for _ in range(num):  # of several scale units
            weights = random.standard_normal((K, N)).astype(np.float32) * np.float32(10.0 ** random.uniform(-2, 0))
            made.append(pack_w4(weights, group_size, mode, activation=activation))
        packed = stack_w4(made).to_gpu()
        _stacked[key] = packed, [dequantize(one) for one in packed]
    return _stacked[key]


def make_case(
    cupy: Any, counts: Sequence[int], K: int, N: int, activation: str = "fp16", mode: str = "group",
    group_size: int | None = 128, spare: int = 9, first: int = 0,
) -> Case:  # fmt: skip
    packed, dense = weights_of(len(counts), K, N, activation, mode, group_size)
    random, dtype = np.random.default_rng(sum(counts)), DType(activation)
    offsets = first + np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    A = random.standard_normal((int(offsets[-1]) + spare, K))
    A[:first] = A[offsets[-1] :] = np.nan  # of no group
    bits = cupy.asarray(to_bits(A, dtype))
    bias = cupy.asarray(to_bits(random.standard_normal((len(counts), N)), dtype))
    parts = [
        to_float(cupy, bits[offsets[g] : offsets[g + 1]], dtype) @ dense[g] + to_float(cupy, bias[g], dtype)
        for g in range(len(counts))
    ]
    return Case(bits, packed, cupy.asarray(offsets), bias, cupy.concatenate(parts))


def run(cupy: Any, case: Case, config: KernelConfig | str = "auto", offsets: Any = None, **more: Any) -> Any:
    """Bits of C, from memory full of NaN; what is not of a group must stay so."""
    rows, N = len(case.A), case.packed.N
    dtype = case.packed.activation
    poison = NAN_BITS[dtype]
    memory = cupy.full(2 * GUARD_ELEMS + rows * N, poison, cupy.uint16)
    bits = memory[GUARD_ELEMS : GUARD_ELEMS + rows * N].reshape(rows, N)
    out = bits.view(cupy.float16) if dtype is DType.FP16 else bits
    given = case.offsets if offsets is None else offsets
    assert w4a16_grouped_gemm(case.A, case.packed, given, case.bias, 1.0, out, config, **more) is out
    cupy.cuda.runtime.deviceSynchronize()
    assert bool((memory[:GUARD_ELEMS] == poison).all())
    assert bool((memory[-GUARD_ELEMS:] == poison).all())
    return bits


def check(cupy: Any, case: Case, bits: Any) -> None:
    first, end = int(case.offsets[0]), int(case.offsets[-1])
    dtype = case.packed.activation
    poison = NAN_BITS[dtype]
    assert bool((bits[:first] == poison).all())
    assert bool((bits[end:] == poison).all())
    found = bits[first:end].view(cupy.float16) if dtype is DType.FP16 else bits[first:end]
    error = float(cupy.linalg.norm(to_float(cupy, found, dtype) - case.expected) / cupy.linalg.norm(case.expected))
    assert error < WORST_ERROR[dtype]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_kernel(cupy: Any, limits: DeviceLimits, config: KernelConfig) -> None:
    case = make_case(cupy, RAGGED, 1416, 648)  # 12 units of k, cut where tiles are few
    few = make_case(cupy, (0, 0, 3, 0, 0, 0, 0, 0), 1416, 648)
    uneven = make_case(cupy, (600, 0, 17, 0, 0, 0, 70, 190), 1416, 648)  # tiles of all shares
    reason = why_not(make_variant(config, "fp16", "group", 128), Sizes(len(case.A), 1416, 648), limits)
    if reason is not None:
        pytest.skip(reason)
    for decomposition in (Decomposition.DATA_PARALLEL, Decomposition.STREAM_K):
        for of in (case, few, uneven):
            bits = run(cupy, of, config._replace(decomposition=decomposition))
            check(cupy, of, bits)
            assert bool((run(cupy, of, config._replace(decomposition=decomposition)) == bits).all())


def config_of_mode(family: str, activation: str, mode: str, group_size: int | None) -> KernelConfig:
    configs = [config for config in CONFIGS if config.family == family]
    return configs[zlib.crc32(f"{activation} {mode} {group_size}".encode()) % len(configs)]


def variants_ahead(test: str, limits: DeviceLimits, params: Mapping[str, Any]) -> Iterator[Variant]:
    """Yield kernels that a test runs, for `conftest.py` to compile."""
    if test == "test_every_kernel":
        yield make_variant(params["config"], "fp16", "group", 128)
    elif test == "test_every_mode":
        types = params["activation"], params["mode"], params["group_size"]
        yield make_variant(config_of_mode(params["family"], *types), *types)


@pytest.mark.parametrize("family", list(grouped_families()))
@pytest.mark.parametrize(("activation", "mode", "group_size", "K", "N"), SAMPLE)
def test_every_mode(
    cupy: Any, limits: DeviceLimits, family: str, activation: str, mode: str, group_size: int | None, K: int, N: int
) -> None:
    config = config_of_mode(family, activation, mode, group_size)
    case = make_case(cupy, (7, 0, 40, 1), K, N, activation, mode, group_size, first=5)
    for decomposition in (Decomposition.DATA_PARALLEL, Decomposition.STREAM_K):
        check(cupy, case, run(cupy, case, config._replace(decomposition=decomposition)))


@pytest.mark.parametrize("counts", [(1,) * 8, (0,) * 7 + (1,), (600, 0, 0, 2, 0, 0, 0, 90), (64,) * 8, (3,)])
def test_the_models_choice(cupy: Any, counts: Sequence[int]) -> None:
    case = make_case(cupy, counts, 1416, 648)
    check(cupy, case, run(cupy, case))
    expected = run(cupy, case, expected_rows=max(1, sum(counts)))
    check(cupy, case, expected)


def test_no_group_has_rows(cupy: Any) -> None:
    case = make_case(cupy, (0,) * 8, 1416, 648)
    assert bool((run(cupy, case) == NAN_BITS[DType.FP16]).all())


def test_many_groups(cupy: Any) -> None:
    counts = [int(count) for count in np.random.default_rng(0).integers(0, 4, 1024)]
    case = make_case(cupy, counts, 136, 72)
    check(cupy, case, run(cupy, case))


def test_a_batch(cupy: Any) -> None:
    case = make_case(cupy, (17,) * 8, 520, 264, spare=0)
    A = case.A.view(cupy.float16).reshape(8, 17, 520)
    C = w4a16_grouped_gemm(A, case.packed, bias=case.bias)

    assert C.shape == (8, 17, 264)
    check(cupy, case, C.reshape(-1, 264).view(cupy.uint16))
    of_one = w4a16_gemm(A[3], case.packed[3], case.bias[3].view(cupy.float16))
    assert float(cupy.abs(of_one - C[3]).max()) <= 2e-2 * float(cupy.abs(of_one).max())


@pytest.mark.parametrize("family", list(grouped_families()))
def test_a_graph_is_replayed_with_other_groups(cupy: Any, family: str) -> None:
    config = next(c for c in CONFIGS if c.family == family and c.cta_m == 16)
    config = config._replace(decomposition=Decomposition.STREAM_K)
    stream = cupy.cuda.Stream(non_blocking=True)
    first, second = (make_case(cupy, counts, 1416, 648, spare=200 - sum(counts)) for counts in ((90, 3), (0, 100)))
    A, offsets = cupy.empty_like(first.A), cupy.empty_like(first.offsets)
    out = cupy.empty((len(A), 648), cupy.float16)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        w4a16_grouped_gemm(A.view(cupy.float16), first.packed, offsets * 0, first.bias, out=out, config=config)
        stream.begin_capture()
        w4a16_grouped_gemm(A.view(cupy.float16), first.packed, offsets, first.bias, out=out, config=config)
        graph = stream.end_capture()
        for case in (first, second, first):
            A[...], offsets[...] = case.A, case.offsets
            out.view(cupy.uint16)[...] = NAN_BITS[DType.FP16]
            stream.synchronize()
            graph.launch(stream)
            stream.synchronize()
            same = case._replace(bias=first.bias)
            dense = [dequantize(one) for one in case.packed]
            parts = np.split(case.A[: int(case.offsets[-1])].get(), case.offsets[1:-1].get())
            expected = [
                to_float(cupy, cupy.asarray(part), DType.FP16) @ dense[g] + to_float(cupy, first.bias[g], DType.FP16)
                for g, part in enumerate(parts)
            ]
            check(cupy, same._replace(expected=cupy.concatenate(expected)), out.view(cupy.uint16))


@pytest.mark.parametrize("family", list(grouped_families()))
def test_offsets_that_make_no_sense_touch_nothing_else(cupy: Any, family: str) -> None:
    case = make_case(cupy, RAGGED, 520, 264)
    config = next(c for c in CONFIGS if c.family == family and c.cta_m == 16)
    random = np.random.default_rng(1)
    wild = [random.integers(-(1 << 31), 1 << 31, len(RAGGED) + 1), np.full(len(RAGGED) + 1, 1 << 30), -np.arange(9)]
    wild.append(np.array([0, 179, 0, 179, 0, 179, 0, 179, 0]))
    for offsets in wild:
        for decomposition in (Decomposition.DATA_PARALLEL, Decomposition.STREAM_K):
            run(cupy, case, config._replace(decomposition=decomposition), cupy.asarray(offsets.astype(np.int32)))
    check(cupy, case, run(cupy, case, config))  # and the counters are as they were


def test_two_streams_at_once(cupy: Any) -> None:
    case = make_case(cupy, (3, 0, 1), 4104, 648)
    reference = run(cupy, case)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    outs = [cupy.empty((len(case.A), 648), cupy.float16) for _ in streams]
    cupy.cuda.runtime.deviceSynchronize()
    for _ in range(20):
        for stream, out in zip(streams, outs, strict=True):
            w4a16_grouped_gemm(case.A, case.packed, case.offsets, case.bias, out=out, stream=stream)
    cupy.cuda.runtime.deviceSynchronize()
    end = int(case.offsets[-1])
    assert all(bool((out.view(cupy.uint16)[:end] == reference[:end]).all()) for out in outs)


def test_a_workspace_of_ones_own(cupy: Any) -> None:
    case = make_case(cupy, (3, 0, 1), 4104, 648)
    workspace = cupy.full(workspace_bytes(len(case.A), case.packed), 0xFF, cupy.uint8)
    check(cupy, case, run(cupy, case, workspace=workspace))
