"""Engines that a comparison runs: our kernels, cuBLAS with 16-bit weights, and PyTorch's int4 GEMM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from benchmarks.compare.operands import TENSOR_SCALE, Gemm, Offsets, Operands, Weights
from gemm_eval.device import BenchDevice, Call, TimingProtocol, limits_of_device
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.kernels import (
    GroupedSizes,
    GroupedW4,
    PackedW4,
    QuantizedFp4,
    Sizes,
    WeightMode,
    choose,
    choose_grouped,
    make_variant,
    pack_fp4,
    pack_w4,
    spec_of_device,
    stack_w4,
    w4a16_gemm,
    w4a16_grouped_gemm,
)
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.measure import GemmShape
from gemm_eval.measure.cublas import WORKSPACE_BYTES, CublasHandle, find_library
from gemm_eval.measure.w4a16 import build_all
from gemm_eval.words import has_package, install_command

T = TypeVar("T")


class Bound(NamedTuple):
    """A GEMM of an engine, ready to be timed.

    Attributes:
        calls: one for each copy of the weights and routing, in turn; each enqueues the whole GEMM.
        routings: of each call.
        read: returns the output of the call that ran last, [M, N] of 16-bit numbers on the GPU.
        dtype: "fp16" or "bf16", of the output.
        config: the kernel's config, in short; empty: the engine does not tell.
    """

    calls: Sequence[Call]
    routings: Sequence[Offsets]
    read: Callable[[], Any]
    dtype: str
    config: str


class Engine(ABC, Generic[T]):
    """Somebody's kernels for GEMMs with 4-bit weights. `T` is the type of a copy of a layer's packed weights.

    Attributes:
        name: for options, files and tables.
        largest_rows: most rows that it is made for; None: any.
        needs_torch: whether it runs on PyTorch's stream.
        max_error: largest relative error of a right result; None: that of the output's type.

    Args:
        device: where it runs; every GEMM comes to its stream.
        operands: A and C.
        protocol: how many copies of the weights are cold.
    """

    name: ClassVar[str]
    largest_rows: ClassVar[int | None] = None
    needs_torch: ClassVar[bool] = False
    max_error: ClassVar[float | None] = None

    def __init__(self, device: BenchDevice, operands: Operands, protocol: TimingProtocol) -> None:
        self.device, self.operands, self.protocol = device, operands, protocol
        self.copies: list[T] = []
        self._made: tuple[tuple[int, int], Any] | None = None

    @classmethod
    def why_missing(cls) -> str | None:
        """Say which package is missing and the command that installs it; None: the engine is there."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """Name library and version."""

    def prepare(self, gemms: Sequence[Gemm]) -> None:
        """Compile what these GEMMs need, at once; what is not compiled here is when it is bound."""

    @abstractmethod
    def pack(self, experts: Sequence[Weights]) -> T:
        """Return the weights of all experts as this engine reads them."""

    @abstractmethod
    def copy(self, packed: T) -> T:
        """Return the same in other memory."""

    @abstractmethod
    def num_bytes(self, packed: T) -> int:
        """Return the bytes of a copy."""

    @abstractmethod
    def call(self, gemm: Gemm, packed: T, offsets: Offsets, on_gpu: Any) -> Call:
        """Return what enqueues the GEMM of one routing.

        Args:
            gemm: sizes and types.
            packed: a copy of the weights.
            offsets: of the routing, on the host.
            on_gpu: the same on the GPU, int32; None for a dense GEMM.
        """

    def config(self, gemm: Gemm) -> str:  # noqa: ARG002
        """Return the config of the kernel that runs, in short; empty: the engine does not tell."""
        return ""

    def dtype(self, gemm: Gemm) -> str:
        """Return the type of the output."""
        return str(gemm.activation)

    def arrays(self, gemm: Gemm) -> tuple[Any, Any]:
        """Return A and C, with room for the rows of the largest routing."""
        return self.operands.inputs(gemm.rows, gemm.layer.K), self.operands.output(gemm.rows, gemm.layer.N)

    def once(self, gemm: Gemm, make: Callable[[], Any]) -> Any:
        """Return what is made of A, once for each of its shapes."""
        key = gemm.rows, gemm.layer.K
        if self._made is None or self._made[0] != key:
            self._made = key, make()
        return self._made[1]

    def read(self, gemm: Gemm) -> Any:
        """Return the output of the call that ran last."""
        return self.arrays(gemm)[1]

    def load(self, experts: Sequence[Weights]) -> None:
        """Pack weights, and copy them until they are cold when their turn comes again."""
        self.unload()
        packed = self.pack(experts)
        most = self.protocol.max_calls
        count = self.protocol.num_weight_copies(self.num_bytes(packed), self.device.l2_bytes, most)
        self.copies = [packed, *(self.copy(packed) for _ in range(count - 1))]

    def unload(self) -> None:
        """Give up the weights."""
        self.copies = []

    def bind(self, gemm: Gemm) -> Bound:
        """Return calls that go round the copies and the routings."""
        routings = gemm.routings
        on_gpu = [self.device.cupy.asarray(offsets) if gemm.layer.is_grouped else None for offsets in routings]
        calls, order = [], []
        for index in range(max(len(self.copies), len(routings))):
            routing = index % len(routings)
            copy = self.copies[index % len(self.copies)]
            calls.append(self.call(gemm, copy, routings[routing], on_gpu[routing]))
            order.append(routings[routing])
        return Bound(calls, order, partial(self.read, gemm), self.dtype(gemm), self.config(gemm))


class OurEngine(Engine[list[PackedW4]]):
    """`w4a16_gemm(A, packed, out=C)` by `config="auto"`: the cost model chooses, nothing is profiled."""

    name: ClassVar[str] = "ours"

    def describe(self) -> str:
        return with_version("gemm_eval")

    def prepare(self, gemms: Sequence[Gemm]) -> None:
        """See `Engine`: on all cores of this machine, into the cache of compiled kernels."""
        wanted = {
            (int(rows), gemm.layer): gemm
            for gemm in gemms
            for offsets in gemm.routings
            for rows in np.unique(np.diff(offsets))
            if rows
        }
        variants = []
        for (rows, _), gemm in sorted(wanted.items(), key=lambda item: item[0]):
            config = _chosen(rows, gemm)
            if not config.family.endswith("_cluster"):  # compiled code does not depend on how K is cut
                config = config._replace(decomposition=Decomposition.DATA_PARALLEL, split_k=1)
            variants.append(make_variant(config, gemm.activation, gemm.mode, gemm.group_size))
        build_all(list(dict.fromkeys(variants)), limits_of_device(0))

    def pack(self, experts: Sequence[Weights]) -> list[PackedW4]:
        return _packed_experts(experts)

    def copy(self, packed: list[PackedW4]) -> list[PackedW4]:
        return [replace(one, qweight=one.qweight.copy(), scales=one.scales.copy()) for one in packed]

    def num_bytes(self, packed: list[PackedW4]) -> int:
        return sum(one.nbytes for one in packed)

    def call(self, gemm: Gemm, packed: list[PackedW4], offsets: Offsets, on_gpu: Any) -> Call:  # noqa: ARG002
        """See `Engine`: a launch for each expert that has rows."""
        a, c = self.arrays(gemm)
        launches = [
            partial(w4a16_gemm, a[start:stop], one, out=c[start:stop], stream=self.device.stream)
            for one, start, stop in zip(packed, offsets.tolist(), offsets[1:].tolist(), strict=False)
            if stop > start
        ]
        if len(launches) == 1:
            return launches[0]

        def enqueue() -> None:
            for launch in launches:
                launch()

        return enqueue

    def config(self, gemm: Gemm) -> str:
        if gemm.layer.is_grouped:
            return ""
        return short_config(_chosen(gemm.tokens, gemm))


class OneLaunchEngine(OurEngine):
    """`w4a16_gemm` for each expert that has rows, whose numbers the host would have to know."""

    name: ClassVar[str] = "one-launch-a-group"

    def describe(self) -> str:
        return f"{with_version('gemm_eval')}, w4a16_gemm for each expert with rows, in one CUDA graph"


class OurGroupedEngine(Engine[GroupedW4]):
    """`w4a16_grouped_gemm(A, packed, offsets, out=C, expected_rows=...)`."""

    name: ClassVar[str] = "ours"

    def describe(self) -> str:
        return with_version("gemm_eval")

    def prepare(self, gemms: Sequence[Gemm]) -> None:
        """See `Engine`: on all cores of this machine, into the cache of compiled kernels."""
        variants = [make_variant(_chosen_grouped(gemm), gemm.activation, gemm.mode, gemm.group_size) for gemm in gemms]
        build_all(list(dict.fromkeys(variants)), limits_of_device(0))

    def pack(self, experts: Sequence[Weights]) -> GroupedW4:
        return stack_w4(_packed_experts(experts))

    def copy(self, packed: GroupedW4) -> GroupedW4:
        return replace(packed, qweight=packed.qweight.copy(), scales=packed.scales.copy())

    def num_bytes(self, packed: GroupedW4) -> int:
        return packed.nbytes

    def call(self, gemm: Gemm, packed: GroupedW4, offsets: Offsets, on_gpu: Any) -> Call:  # noqa: ARG002
        a, c = self.arrays(gemm)
        return partial(
            w4a16_grouped_gemm, a, packed, on_gpu, out=c, stream=self.device.stream, expected_rows=gemm.expected_rows
        )

    def config(self, gemm: Gemm) -> str:
        return short_config(_chosen_grouped(gemm))


def _packed_experts(experts: Sequence[Weights]) -> list[PackedW4]:
    return [_packed(one) for one in experts]


def _packed(one: Weights) -> PackedW4:
    if one.mode.is_fp4:
        tensor_scale = TENSOR_SCALE if one.mode is WeightMode.NVFP4 else 1.0
        return pack_fp4(QuantizedFp4(one.codes.T, one.scale_bytes.T, tensor_scale), one.mode, one.activation)
    zeros, group_size = None if one.zeros is None else one.zeros.T, one.group_size or None
    return pack_w4(one.codes.T, group_size, one.mode, scales=one.scales.T, zeros=zeros, activation=one.activation)


def _chosen(rows: int, gemm: Gemm) -> KernelConfig:
    sizes = Sizes(rows, gemm.layer.K, gemm.layer.N)
    return choose(sizes, gemm.activation, gemm.mode, gemm.group_size, spec_of_device(0), limits_of_device(0))


def _chosen_grouped(gemm: Gemm) -> KernelConfig:
    sizes = GroupedSizes(gemm.rows, gemm.layer.K, gemm.layer.N, gemm.layer.num_groups)
    types = gemm.activation, gemm.mode, gemm.group_size
    return choose_grouped(sizes, *types, gemm.expected_rows, False, spec_of_device(0), limits_of_device(0))


def short_config(config: KernelConfig) -> str:
    """Return a config as tables have it."""
    cut = {Decomposition.SPLIT_K: f" split-K {config.split_k}", Decomposition.STREAM_K: " stream-K"}
    return (
        f"{config.cta_m}x{config.cta_n}x{config.cta_k} {config.cluster_m}x{config.cluster_n} {config.num_stages} "
        f"{config.num_warps} {config.schedule.name.lower()}{cut.get(config.decomposition, '')} {config.family}"
    )


class CublasEngine(Engine[Any]):
    """cublasGemmEx on dequantized weights, with the arguments of `cupy.matmul` and `torch.matmul`."""

    name: ClassVar[str] = "cublas"

    def __init__(self, device: BenchDevice, operands: Operands, protocol: TimingProtocol) -> None:
        super().__init__(device, operands, protocol)
        with suppress(Exception):  # makes CuPy load its cuBLAS; without that, the loader's or PyTorch's is taken
            _ = device.cupy.cuda.Device().cublas_handle
        library, _ = find_library("libcublas")
        self._workspace = device.empty_bytes(WORKSPACE_BYTES)
        self._handle = CublasHandle(library, device.stream.ptr, self._workspace.data.ptr)

    def describe(self) -> str:
        return f"cuBLAS {self._handle.version()}"

    def pack(self, experts: Sequence[Weights]) -> Any:
        (weights,) = experts
        return weights.dense()

    def copy(self, packed: Any) -> Any:
        return packed.copy()

    def num_bytes(self, packed: Any) -> int:
        return int(packed.nbytes)

    def call(self, gemm: Gemm, packed: Any, offsets: Offsets, on_gpu: Any) -> Call:  # noqa: ARG002
        a, c = self.arrays(gemm)
        shape = GemmShape(1, gemm.tokens, gemm.layer.K, gemm.layer.N)
        return self._handle.gemm(shape, self.dtype(gemm), a.data.ptr, packed.data.ptr, c.data.ptr)


class _TinygemmWeights(NamedTuple):
    """Words of 4-bit weights, and scale and zero point of each group: bf16 [G, N, 2]."""

    words: Any
    scales_and_zeros: Any


class TinygemmEngine(Engine[_TinygemmWeights]):
    """PyTorch's int4 GEMM, made for a few rows; takes bf16 only, so fp16 activations are converted, untimed."""

    name: ClassVar[str] = "tinygemm"
    largest_rows: ClassVar[int | None] = 64
    needs_torch: ClassVar[bool] = True
    _INNER_K_TILES = 8
    _K_MULTIPLE, _N_MULTIPLE = 128, 8

    def __init__(self, device: BenchDevice, operands: Operands, protocol: TimingProtocol) -> None:
        super().__init__(device, operands, protocol)
        self._torch = import_torch()
        self._result: Any = None

    @classmethod
    def why_missing(cls) -> str | None:
        if (reason := why_no_torch()) is not None:
            return reason
        if not hasattr(import_torch(), "_weight_int4pack_mm"):
            return f"this PyTorch has no int4 GEMM: {install_command('torch')}"
        return None

    def describe(self) -> str:
        return f"torch._weight_int4pack_mm of torch {self._torch.__version__}, bf16"

    def pack(self, experts: Sequence[Weights]) -> _TinygemmWeights:
        """See `Engine`.

        Raises:
            UnsupportedError: sizes that it does not take.
        """
        (weights,) = experts
        if weights.mode is not WeightMode.GROUP:
            raise UnsupportedError(f"{self.name} is compared in mode group only, got {weights.mode.name.lower()}")
        if weights.K % self._K_MULTIPLE or weights.N % self._N_MULTIPLE:
            raise UnsupportedError(
                f"{self.name} takes K that is a multiple of {self._K_MULTIPLE} and N of {self._N_MULTIPLE}, got "
                f"K={weights.K}, N={weights.N}"
            )
        torch = self._torch
        integers = as_tensor(weights.codes)
        pairs = (integers[:, ::2] << 4) | integers[:, 1::2]
        scales = as_tensor(weights.scales).to(torch.bfloat16).T
        both = torch.stack([scales, torch.zeros_like(scales)], dim=2).contiguous()
        return _TinygemmWeights(torch._convert_weight_to_int4pack(pairs.contiguous(), self._INNER_K_TILES), both)

    def copy(self, packed: _TinygemmWeights) -> _TinygemmWeights:
        return _TinygemmWeights(*(tensor.clone() for tensor in packed))

    def num_bytes(self, packed: _TinygemmWeights) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in packed)

    def call(self, gemm: Gemm, packed: _TinygemmWeights, offsets: Offsets, on_gpu: Any) -> Call:  # noqa: ARG002
        a, _ = self.arrays(gemm)
        inputs = as_tensor(a, is_bf16=gemm.activation is DType.BF16).to(self._torch.bfloat16)
        return partial(self._run, inputs, packed, gemm.group_size)

    def dtype(self, gemm: Gemm) -> str:  # noqa: ARG002
        return "bf16"

    def read(self, gemm: Gemm) -> Any:  # noqa: ARG002
        return self.device.cupy.asarray(self._result.view(self._torch.int16)).view("uint16")

    def _run(self, inputs: Any, packed: _TinygemmWeights, group_size: int) -> None:
        self._result = self._torch._weight_int4pack_mm(inputs, packed.words, group_size, packed.scales_and_zeros)


def with_version(package: str) -> str:
    """Return the name of a package with its version, where its metadata is installed."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # it runs from a folder
        return package


def import_torch() -> Any:
    """Return the module torch; see `why_no_torch`."""
    import torch

    return torch


def why_no_torch() -> str | None:
    """Say why PyTorch cannot be used, and what to do; None: it can."""
    if not has_package("torch"):
        return f"PyTorch is not installed: {install_command('torch')}"
    try:
        torch = import_torch()
    except (ImportError, OSError) as error:
        return f"PyTorch does not load: {error}"
    return None if torch.cuda.is_available() else "PyTorch finds no GPU: it must be a build for CUDA"


def as_tensor(array: Any, *, is_bf16: bool = False) -> Any:
    """Return CuPy's memory as a tensor of PyTorch, not copied; `is_bf16`: it holds the bits of bf16."""
    torch = import_torch()
    if is_bf16:
        return torch.as_tensor(array.view(np.int16), device="cuda").view(torch.bfloat16)
    return torch.as_tensor(array, device="cuda")
