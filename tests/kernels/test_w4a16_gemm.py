"""The call `w4a16_gemm` on a GPU that is played: what it checks, and what it hands to a kernel."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_eval import DType, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.arch.gpu import limits_of_spec
from gemm_eval.device import CompiledKernel, arrays, runtime
from gemm_eval.errors import GemmEvalError, InvalidOptionError, InvalidProblemError, UnsupportedError
from gemm_eval.kernels import (
    Occupancy,
    PackedW4,
    WeightMode,
    config_cache,
    gemm,
    legal_configs,
    occupancy,
    pack_w4,
    w4a16_gemm,
    workspace_bytes,
)
from gemm_eval.kernels import plan as planning
from gemm_eval.kernels import tune as tuning
from gemm_eval.kernels.families.base import Sizes
from gemm_eval.kernels.plan import rank
from gemm_eval.kernels.tune import PROFILED_CONFIGS, TimedConfig, Tuning, forget_profiled
from gemm_eval.mapping import Decomposition, KernelConfig

K, N = 512, 256
ARCH = load_arch("h200-sxm")
assert isinstance(ARCH, GpuSpec)
HOPPER = limits_of_spec(ARCH)
addresses = itertools.count(0x7F0000000000, 1 << 24)


class Array:
    """What this library looks at in a CuPy array; `at` moves its start by so many bytes."""

    def __init__(
        self, shape: tuple[int, ...], dtype: str = "float16", strides: tuple[int, ...] | None = None, at: int = 0,
        device: int = 0,
    ) -> None:  # fmt: skip
        self.shape, self.dtype, self.itemsize = shape, np.dtype(dtype), np.dtype(dtype).itemsize
        plain = tuple(int(np.prod(shape[i + 1 :])) * self.itemsize for i in range(len(shape)))
        self.strides = plain if strides is None else tuple(stride * self.itemsize for stride in strides)
        self.flags = SimpleNamespace(c_contiguous=self.strides == plain)
        self.data = SimpleNamespace(ptr=next(addresses) + at)
        self.device = SimpleNamespace(id=device)
        self.nbytes = int(np.prod(shape)) * self.itemsize

    def as_interface(self, **more: Any) -> Any:
        """The same memory as another library shows it."""
        strides = None if self.flags.c_contiguous else self.strides
        data = {"shape": self.shape, "typestr": self.dtype.str, "data": (self.data.ptr, False), "strides": strides}
        return SimpleNamespace(__cuda_array_interface__=data | {"version": 3} | more, shape=self.shape)

    def as_tensor(self, dtype: str) -> Any:
        """The same memory as torch shows it."""
        return SimpleNamespace(
            data_ptr=lambda: self.data.ptr, shape=self.shape, dtype=dtype, element_size=lambda: 2,
            stride=lambda: tuple(s // 2 for s in self.strides), device=SimpleNamespace(type="cuda", index=0),
        )  # fmt: skip


class Gpu:
    """Writes down what is done to it."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.cleared: list[tuple[int, int, int]] = []
        self.waits: list[tuple[int, int]] = []
        self.is_capturing = False
        self.device = 0
        runtime = SimpleNamespace(
            getDevice=lambda: self.device,
            streamIsCapturing=lambda stream: self.is_capturing,
            memsetAsync=lambda address, value, size, stream: self.cleared.append((address, size, stream)),
            eventRecord=lambda event, stream: self.waits.append((event, stream)),
            streamWaitEvent=lambda stream, event: self.waits.append((stream, event)),
            pointerGetAttributes=lambda address: SimpleNamespace(device=0),
        )
        self.cupy = SimpleNamespace(
            ndarray=Array,
            empty=lambda shape, dtype: Array(tuple(shape), dtype),
            cuda=SimpleNamespace(
                runtime=runtime, get_current_stream=lambda: SimpleNamespace(ptr=77), Device=self._on,
                Event=lambda disable_timing: SimpleNamespace(ptr=5),
                Stream=SimpleNamespace(from_external=contextlib.nullcontext, null=contextlib.nullcontext()),
            ),
        )  # fmt: skip

    @contextlib.contextmanager
    def _on(self, device: int) -> Iterator[None]:
        before, self.device = self.device, device
        yield
        self.device = before

    def load(self, compiled: CompiledKernel, device: int, smem_bytes: int, stream: int) -> Any:
        return lambda *launch: self.launches.append((device, *launch))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    for module in (runtime, arrays):
        monkeypatch.setattr(module, "import_cupy", lambda: made.cupy)
    monkeypatch.setattr(runtime, "limits_of_device", lambda device: HOPPER)
    monkeypatch.setattr(runtime, "name_of_device", lambda device: "NVIDIA H200")
    for module in (planning, tuning):
        monkeypatch.setattr(module, "spec_of_device", lambda device: ARCH)
    monkeypatch.setattr(runtime, "load_function", made.load)
    monkeypatch.setattr(runtime, "_scratch", {})
    compiled = CompiledKernel(b"", "k", "sm_90a", 128, 0, 0, 0, 0, ())
    monkeypatch.setattr(planning, "compile_for", lambda variant, limits: compiled)
    monkeypatch.setattr(gemm, "compile_for", lambda variant, limits: compiled)
    monkeypatch.setattr(planning, "encode_tensor_map", lambda *facts: facts)
    planning.plan_on_device.cache_clear()
    yield made
    planning.plan_on_device.cache_clear()


def on_gpu(packed: PackedW4, device: int = 0) -> PackedW4:
    arrays = [Array(array.shape, array.dtype.str, device=device) for array in (packed.qweight, packed.scales)]
    return PackedW4(*arrays, packed.N, packed.K, packed.mode, packed.group_size, packed.activation)


CPU = {activation: pack_w4(np.ones((K, N), np.float32), activation=activation) for activation in ("fp16", "bf16")}


@pytest.fixture
def packed(gpu: Gpu) -> PackedW4:
    return on_gpu(CPU["fp16"])


@pytest.fixture
def sorted_by_group(gpu: Gpu) -> PackedW4:
    """Weights whose rows were sorted by group."""
    return dataclasses.replace(on_gpu(CPU["fp16"]), permutation=Array((K,), "int32"))


@pytest.fixture
def packed_bf16(gpu: Gpu) -> PackedW4:
    return on_gpu(CPU["bf16"])


def config_of(family: str, M: int = 4, **wanted: Any) -> KernelConfig:
    return next(
        config
        for config in legal_configs(Sizes(M, K, N), HOPPER)
        if config.family == family and all(getattr(config, name) == value for name, value in wanted.items())
    )


SPLIT = config_of("w4a16_sm80", decomposition=Decomposition.SPLIT_K)
WHOLE = config_of("w4a16_sm80", decomposition=Decomposition.DATA_PARALLEL)


def test_a_result_is_made_and_the_kernel_launched(gpu: Gpu, packed: PackedW4) -> None:
    A = Array((4, K))
    out = w4a16_gemm(A, packed, config=WHOLE)
    ((device, grid, block, arguments, smem_bytes, stream),) = gpu.launches

    assert (out.shape, out.dtype) == ((4, N), np.float16)
    assert (device, stream.ptr) == (0, 77)
    assert (len(grid), len(block)) == (3, 3)
    assert (
        smem_bytes
        == planning.plan_on_device(Sizes(4, K, N), DType.FP16, WeightMode.GROUP, 128, WHOLE, 0).launch.smem_bytes
    )
    numbers = [int(argument) for argument in arguments]
    assert {A.data.ptr, out.data.ptr, packed.qweight.data.ptr, packed.scales.data.ptr, K, N, 4} <= set(numbers)
    assert gpu.cleared == []


@pytest.mark.parametrize("M", [1, 16, 17, 300])
def test_without_a_config_one_is_chosen(gpu: Gpu, packed: PackedW4, M: int) -> None:
    out = Array((M, N))

    assert w4a16_gemm(Array((M, K)), packed, out=out, bias=Array((N,)), alpha=2) is out
    assert len(gpu.launches) == 1


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[tuple[Any, ...]]]:
    """Calls of the tuner, which finds the third candidate fastest; configs are kept in an empty folder."""
    calls: list[tuple[Any, ...]] = []

    def tune(configs: Any, *rest: Any) -> Tuning:
        calls.append((tuple(configs), *rest))
        order = [configs[2], *configs[:2], *configs[3:]]
        return Tuning(tuple(TimedConfig(config, 10.0 + place) for place, config in enumerate(order)), ())

    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.setattr(config_cache, "compiler_version", lambda: "13.0 13.0.88")
    monkeypatch.setattr(config_cache, "driver_version", lambda: "580.0")
    monkeypatch.setattr(config_cache, "shipped_path", lambda gpu: tmp_path / "none.json")
    forget_profiled()
    tuning._gpu.cache_clear()
    yield calls
    forget_profiled()
    tuning._gpu.cache_clear()


def test_the_models_first_choices_are_timed_once(
    gpu: Gpu, packed: PackedW4, tuned: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    A = Array((4, K))
    w4a16_gemm(A, packed, config="profile")
    w4a16_gemm(A, packed, config="profile")
    ((configs, sizes, tuned_weights, operands, device, stream),) = tuned

    assert configs == rank(Sizes(4, K, N), DType.FP16, WeightMode.GROUP, 128, ARCH, PROFILED_CONFIGS)
    assert (sizes, tuned_weights, device, stream) == (Sizes(4, K, N), packed, 0, 77)
    assert (operands.a, operands.c, operands.workspace) == (A.data.ptr, 0, 0)  # nothing of the caller's is written
    best = planning.plan_on_device(Sizes(4, K, N), DType.FP16, WeightMode.GROUP, 128, configs[2], 0)
    assert [launch[1] for launch in gpu.launches] == [best.launch.grid] * 2
    assert list(tmp_path.glob("*.json"))

    forget_profiled()  # as another process
    w4a16_gemm(A, packed, config="profile")
    assert len(tuned) == 1
    w4a16_gemm(Array((5, K)), packed, config="profile")
    assert len(tuned) == 2


def test_the_model_chooses_without_timing(gpu: Gpu, packed: PackedW4, tuned: list[tuple[Any, ...]]) -> None:
    w4a16_gemm(Array((4, K)), packed)
    (first,) = rank(Sizes(4, K, N), DType.FP16, WeightMode.GROUP, 128, ARCH, 1)
    plan = planning.plan_on_device(Sizes(4, K, N), DType.FP16, WeightMode.GROUP, 128, first, 0)

    assert gpu.launches[0][1] == plan.launch.grid
    assert tuned == []


@pytest.mark.parametrize(
    ("shape", "strides", "rows", "lda"),
    [
        ((3, K), None, 3, K), ((3, K), (K + 8, 1), 3, K + 8), ((1, K), (7, 1), 1, K), ((2, 3, K), None, 6, K),
        ((2, 3, K), (3 * (K + 8), K + 8, 1), 6, K + 8), ((5, 1, K), (2 * K, 3, 1), 5, 2 * K),
        ((2, 1, 3, K), (6 * K, 1, 2 * K, 1), 6, 2 * K),
    ],
)  # fmt: skip
def test_leading_dimensions_are_rows(
    gpu: Gpu, shape: tuple[int, ...], strides: tuple[int, ...] | None, rows: int, lda: int
) -> None:
    array = arrays.as_device_array(Array(shape, strides=strides), "A", 77)

    assert arrays.as_rows(array, "A", K)[1:] == (rows, K, lda)


def test_the_output_has_the_leading_dimensions_of_a(gpu: Gpu, packed: PackedW4) -> None:
    assert w4a16_gemm(Array((2, 3, K)), packed).shape == (2, 3, N)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"A": np.ones((4, K), np.float16)}, "A must be an array on a GPU"),
    ({"A": [[1.0]]}, "A must be an array on a GPU .*got list"),
    ({"A": Array((4, K), "float32")}, "A must be float16, the type that the weights were packed for, got float32"),
    ({"A": Array((4, K), "uint16")}, "A must be float16"),
    ({"A": Array((4, K - 8))}, rf"A must have shape \[..., rows, {K}\], got \[4, {K - 8}\]"),
    ({"A": Array((K,))}, "A must have shape"),
    ({"A": Array((0, K))}, "A must have at least one row"),
    ({"A": Array((4, K), device=1)}, "A must be on GPU 0, where the weights are, got GPU 1"),
    ({"A": Array((4, K), at=8)}, "A must start at a multiple of 16 bytes"),
    ({"A": Array((4, K), strides=(K + 4, 1))}, "start at multiples of 8 elements"),
    ({"A": Array((4, K), strides=(0, 1))}, "rows that do not overlap"),
    ({"A": Array((4, K), strides=(1, 4))}, "A must have contiguous rows"),
    ({"A": Array((4, K), strides=(-K, 1))}, "rows that do not overlap"),
    ({"A": Array((2, 2, K), strides=(5 * K, K, 1))}, "rows at one distance"),
    ({"A": Array((4, K)).as_interface(typestr=">f2")}, "A must be little-endian"),
    ({"A": Array((4, K)).as_interface(mask=1)}, "A must not be masked"),
    ({"A": Array((4, K)).as_tensor("torch.bfloat16")}, r"A must be float16.*got torch\.bfloat16"),
    ({"packed": np.ones((K, N))}, "packed must be a PackedW4"),
    ({"packed": CPU["fp16"]}, r"packed\.to_gpu\(\) moves them"),
    ({"bias": Array((N - 8,))}, rf"bias must be contiguous with shape \[{N}\]"),
    ({"bias": Array((1, N))}, "bias must be contiguous with shape"),
    ({"bias": Array((N,), strides=(2,))}, "bias must be contiguous"),
    ({"bias": Array((N,), "float32")}, "bias must be float16"),
    ({"bias": Array((N,), at=2)}, "bias must start at a multiple of 16 bytes"),
    ({"bias": Array((N,), device=1)}, "bias must be on GPU 0"),
    ({"out": Array((5, N))}, "out must be contiguous with 4 rows, as A has, got 5"),
    ({"out": Array((4, N), strides=(N + 8, 1))}, "out must be contiguous"),
    ({"out": Array((4, N - 8))}, "out must have shape"),
    ({"out": Array((4, N), "uint16")}, "out must be float16"),
    ({"out": Array((4, N), at=4)}, "out must start at"),
    ({"out": Array((4, N), device=1)}, "out must be on GPU 0"),
    *(({"alpha": alpha}, "alpha must be a finite number") for alpha in (float("nan"), float("inf"), "1", None, 1j)),
    ({"stream": "fast"}, "stream must be None, a stream|stream must be a"),
    ({"stream": SimpleNamespace(ptr=12, device_id=1)}, "stream must be one of GPU 0, where A is, got one of GPU 1"),
    ({"config": "fast"}, "config must be a KernelConfig, 'auto' or 'profile', got 'fast'"),
    ({"config": WHOLE._replace(cta_k=96)}, "has no such kernel"),
    ({"config": WHOLE._replace(split_k=2)}, r"\(decomposition, split_k\) must be one of"),
    ({"config": SPLIT._replace(split_k=63)}, "K = 512 has 4 units of 128"),
    ({"workspace": Array((64,), "uint8")}, "workspace must have at least .* bytes"),
    ({"workspace": Array((1 << 22,), "float16")}, "workspace must be a contiguous array of uint8"),
    ({"workspace": Array((1 << 22,), "uint8", device=1)}, "workspace must be a contiguous array of uint8 on GPU 0"),
    ({"workspace": Array((1 << 22,), "uint8", at=4)}, "start at a multiple of 16"),
    ({"workspace": Array((1 << 22,), "uint8", strides=(2,))}, "workspace must be a contiguous"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_bad_arguments(gpu: Gpu, packed: PackedW4, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GemmEvalError, match=message):
        w4a16_gemm(**{"A": Array((4, K)), "packed": packed, "config": SPLIT} | changes)
    assert gpu.launches == []


def test_an_output_over_an_operand_is_refused(gpu: Gpu, packed: PackedW4) -> None:
    A, bias = Array((4, K)), Array((N,))
    for taken in (A.data.ptr, A.data.ptr + (3 * K + K - 8) * 2, bias.data.ptr, packed.scales.data.ptr + 16):
        out = Array((4, N))
        out.data.ptr = taken
        with pytest.raises(InvalidProblemError, match="out must not share memory"):
            w4a16_gemm(A, packed, bias, out=out)
    out.data.ptr = A.data.ptr + 4 * K * 2
    w4a16_gemm(A, packed, bias, out=out)


def test_the_gpu_of_the_weights_is_taken(gpu: Gpu) -> None:
    w4a16_gemm(Array((4, K), device=1), on_gpu(CPU["fp16"], device=1), out=Array((4, N), device=1))

    assert [launch[0] for launch in gpu.launches] == [1]
    assert gpu.device == 0


def test_bf16_comes_as_a_type_or_as_bits(gpu: Gpu, packed_bf16: PackedW4) -> None:
    bits = Array((4, K), "uint16")

    assert w4a16_gemm(bits, packed_bf16).dtype == np.uint16
    assert w4a16_gemm(bits.as_tensor("torch.bfloat16"), packed_bf16).dtype == np.uint16
    with pytest.raises(InvalidProblemError, match="A must be bfloat16, or its bits in uint16"):
        w4a16_gemm(Array((4, K)), packed_bf16)


def test_arrays_of_other_libraries_are_taken(gpu: Gpu, packed: PackedW4) -> None:
    A, out = Array((4, K)), Array((4, N))
    w4a16_gemm(A.as_tensor("torch.float16"), packed, out=out, config=WHOLE)
    w4a16_gemm(A.as_interface(), packed, out=out, config=WHOLE)
    first, second = (launch[3] for launch in gpu.launches)

    assert first == second
    assert gpu.waits == []


def test_what_wrote_an_operand_on_a_named_stream_is_waited_for(gpu: Gpu, packed: PackedW4) -> None:
    w4a16_gemm(Array((4, K)).as_interface(stream=9), packed, config=WHOLE, stream=3)

    assert gpu.waits == [(5, 9), (3, 5)]


@pytest.mark.parametrize(
    "stream",
    [12, SimpleNamespace(ptr=12), SimpleNamespace(cuda_stream=12), SimpleNamespace(__cuda_stream__=lambda: (0, 12))],
)
def test_streams_of_other_libraries_are_taken(gpu: Gpu, packed: PackedW4, stream: Any) -> None:
    w4a16_gemm(Array((4, K)), packed, stream=stream)

    assert gpu.launches[0][-1].ptr == 12


def test_a_kernel_too_large_for_an_sm_is_refused(gpu: Gpu, packed: PackedW4, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Occupancy(0, "registers", 128, 255, 0, 0)
    monkeypatch.setattr(planning, "occupancy_of", lambda variant, compiled, limits: full)
    with pytest.raises(UnsupportedError, match="a CTA does not fit an SM, registers run out"):
        w4a16_gemm(Array((4, K)), packed, config=WHOLE)


# ---- workspace -----------------------------------------------------------------------------------------------------


def test_every_stream_has_its_own_workspace_and_keeps_it(gpu: Gpu, packed: PackedW4) -> None:
    A, out = Array((4, K)), Array((4, N))
    for stream in (1, 2, 1):
        w4a16_gemm(A, packed, out=out, config=SPLIT, stream=stream)
    first, second, third = (launch[3] for launch in gpu.launches)

    assert first != second
    assert first == third
    assert [stream for _, _, stream in gpu.cleared] == [1, 2]


def test_a_workspace_that_grows_keeps_what_a_graph_may_use(gpu: Gpu) -> None:
    small = runtime.scratch_of(0, 1, 1000, 10)
    large = runtime.scratch_of(0, 1, small.workspace_bytes + 1, 10)

    assert large.workspace_bytes >= 2 * small.workspace_bytes
    assert large.counters == small.counters
    assert set(small.buffers) < set(large.buffers)
    assert runtime.scratch_of(0, 1, 1000, 10) is large


def test_a_workspace_does_not_grow_during_a_capture(gpu: Gpu, packed: PackedW4) -> None:
    A, out = Array((4, K)), Array((4, N))
    gpu.is_capturing = True
    with pytest.raises(InvalidOptionError, match="a CUDA graph is being captured on this stream: run this GEMM once"):
        w4a16_gemm(A, packed, out=out, config=SPLIT)
    with pytest.raises(InvalidOptionError, match="captured on this stream: give out"):
        w4a16_gemm(A, packed, config=SPLIT)
    gpu.is_capturing = False
    w4a16_gemm(A, packed, out=out, config=SPLIT)
    gpu.is_capturing = True
    w4a16_gemm(A, packed, out=out, config=SPLIT)

    assert len(gpu.launches) == 2


def test_a_given_workspace_is_cleared_where_it_counts(gpu: Gpu, packed: PackedW4) -> None:
    size = workspace_bytes(4, packed, SPLIT)
    given = Array((size,), "uint8")
    w4a16_gemm(Array((4, K)), packed, config=SPLIT, workspace=given)
    ((address, cleared, stream),) = gpu.cleared
    arguments = {int(argument) for argument in gpu.launches[0][3]}

    assert (address, stream) == (given.data.ptr, 77)
    assert 0 < cleared < size
    assert cleared % 256 == 0
    assert {given.data.ptr, given.data.ptr + cleared} <= arguments


def test_a_workspace_over_an_operand_is_refused(gpu: Gpu, packed: PackedW4) -> None:
    A, workspace = Array((4, K)), Array((1 << 22,), "uint8")
    workspace.data.ptr = A.data.ptr
    with pytest.raises(InvalidOptionError, match="workspace must not share memory"):
        w4a16_gemm(A, packed, config=SPLIT, workspace=workspace)


# ---- act-order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [WHOLE, SPLIT], ids=["whole", "split"])
def test_columns_are_gathered_before_the_kernel_reads_them(
    gpu: Gpu, sorted_by_group: PackedW4, config: KernelConfig
) -> None:
    A = Array((3, K), strides=(K + 8, 1))
    out = w4a16_gemm(A, sorted_by_group, config=config)
    (_, _, _, gathering, _, first), (_, _, _, arguments, _, second) = gpu.launches
    a, permutation, gathered, *sizes = (int(argument) for argument in gathering)
    read = {int(argument) for argument in arguments}

    assert first == second
    assert (a, permutation, sizes) == (A.data.ptr, sorted_by_group.permutation.data.ptr, [3, K, K + 8])
    assert {gathered, out.data.ptr} <= read
    assert not {A.data.ptr, K + 8} & read
    memory = runtime.scratch_of(0, 77, 0, 0)
    assert memory.workspace <= gathered <= memory.workspace + memory.workspace_bytes - 3 * K * 2
    assert (gathered - memory.workspace) % 256 == 0


def test_gathered_activations_lie_behind_what_the_kernel_needs(gpu: Gpu, sorted_by_group: PackedW4) -> None:
    for config in (WHOLE, SPLIT):
        plain, size = (workspace_bytes(5, weights, config) for weights in (on_gpu(CPU["fp16"]), sorted_by_group))
        given = Array((size,), "uint8")
        gpu.launches.clear()
        w4a16_gemm(Array((5, K)), sorted_by_group, config=config, workspace=given)
        gathered = int(gpu.launches[0][3][2])

        assert given.data.ptr + plain <= gathered
        assert gathered + 5 * K * 2 <= given.data.ptr + size < gathered + 5 * K * 2 + 256
        with pytest.raises(InvalidOptionError, match=f"workspace must have at least {size:,} bytes"):
            w4a16_gemm(Array((5, K)), sorted_by_group, config=config, workspace=Array((size - 1,), "uint8"))


def test_an_output_over_the_permutation_is_refused(gpu: Gpu, sorted_by_group: PackedW4) -> None:
    out = Array((4, N))
    out.data.ptr = sorted_by_group.permutation.data.ptr
    with pytest.raises(InvalidProblemError, match="out must not share memory with A, the weights"):
        w4a16_gemm(Array((4, K)), sorted_by_group, out=out)


def test_memory_for_gathered_activations_does_not_grow_during_a_capture(gpu: Gpu, sorted_by_group: PackedW4) -> None:
    M = 8192
    A, out = Array((M, K)), Array((M, N))
    gpu.is_capturing = True
    with pytest.raises(InvalidOptionError, match="run this GEMM once"):
        w4a16_gemm(A, sorted_by_group, out=out, config=WHOLE)
    assert gpu.launches == []
    gpu.is_capturing = False
    w4a16_gemm(A, sorted_by_group, out=out, config=WHOLE)
    gpu.is_capturing = True
    w4a16_gemm(A, sorted_by_group, out=out, config=WHOLE)
    first, second = (launch[3][2] for launch in gpu.launches[::2])

    assert first == second


def test_nothing_is_gathered_for_a_call_that_is_refused(gpu: Gpu, sorted_by_group: PackedW4) -> None:
    with pytest.raises(InvalidOptionError, match="alpha must be a finite number"):
        w4a16_gemm(Array((4, K)), sorted_by_group, alpha=float("nan"))
    assert gpu.launches == []


def test_a_permutation_on_another_gpu_is_refused(gpu: Gpu, sorted_by_group: PackedW4) -> None:
    elsewhere = dataclasses.replace(sorted_by_group, permutation=Array((K,), "int32", device=1))
    with pytest.raises(InvalidProblemError, match="all of its arrays on one GPU"):
        w4a16_gemm(Array((4, K)), elsewhere)


def test_what_can_be_asked_without_running(gpu: Gpu) -> None:
    weights = CPU["fp16"]

    assert workspace_bytes(4, weights, WHOLE, "h200-sxm") == 0
    assert workspace_bytes(4, weights, SPLIT, "h200-sxm") == workspace_bytes(4, weights, SPLIT) > 0
    assert occupancy(SPLIT, arch="h200-sxm") == occupancy(WHOLE)
    assert occupancy(WHOLE, "bf16", "column").registers == 128
    assert gpu.launches == []
    with pytest.raises(InvalidProblemError, match="M must be 1 to"):
        workspace_bytes(0, weights, WHOLE, "h200-sxm")
    with pytest.raises(UnsupportedError, match="sg2260e is none"):
        occupancy(WHOLE, arch="sg2260e")
    with pytest.raises(UnsupportedError, match=r"only for 9\.0"):
        occupancy(config_of("w4a16_sm90"), arch="a100-sxm-80gb")
