"""Engines of grouped GEMMs side by side: all experts of a layer, tokens routed at random, as `side_by_side` does."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gemm_eval.device import BenchDevice, Call, TimingProtocol, limits_of_device, measure_floor_us
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.evaluate import progress_bar
from gemm_eval.extras import needs_extra
from gemm_eval.kernels import (
    GroupedSizes,
    GroupedW4,
    PackedW4,
    Sizes,
    WeightMode,
    choose,
    choose_grouped,
    make_variant,
    pack_w4,
    spec_of_device,
    stack_w4,
    w4a16_gemm,
    w4a16_grouped_gemm,
)
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.measure.engines.base import Bound, with_version
from gemm_eval.measure.engines.experts import ExpertGrid, ExpertLayer, ExpertWeights, GroupedGemm
from gemm_eval.measure.engines.humming import HummingEngine, HummingWeights, in_short, is_in, weight_config
from gemm_eval.measure.engines.operands import Operands
from gemm_eval.measure.engines.ours import kernel_in_short
from gemm_eval.measure.engines.side_by_side import (
    PROTOCOL,
    EngineFailure,
    SideBySide,
    largest_error,
    time_engines,
    told,
)
from gemm_eval.measure.engines.torch_tensors import as_tensor, import_torch
from gemm_eval.measure.runners.w4a16_builds import build_all
from gemm_eval.words import shown

__all__ = ["GROUPED_ENGINES", "GroupedEngine", "choose_grouped_engines", "compare_grouped_engines"]

T = TypeVar("T")


class GroupedEngine(ABC, Generic[T]):
    """One engine of grouped GEMMs. `T` is what a copy of a layer's packed weights is.

    Attributes:
        name: for options, files and tables.
        needs_torch: whether it runs on PyTorch's stream.

    Args:
        device: where it runs; every GEMM comes to its stream.
        operands: A and C.
        protocol: how many copies of the weights are cold.
    """

    name: ClassVar[str]
    needs_torch: ClassVar[bool] = False

    def __init__(self, device: BenchDevice, operands: Operands, protocol: TimingProtocol) -> None:
        self.device, self.operands, self.protocol = device, operands, protocol
        self.copies: list[T] = []

    @classmethod
    def why_missing(cls) -> str | None:
        """Say which package is missing and the command that installs it; None: the engine is there."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """Name library and version."""

    def prepare(self, gemms: Sequence[GroupedGemm]) -> None:
        """Compile what these GEMMs need, at once; what is not compiled here is when it is bound."""

    @abstractmethod
    def pack(self, weights: ExpertWeights) -> T:
        """Return the weights of all experts as this engine reads them."""

    @abstractmethod
    def copy(self, packed: T) -> T:
        """Return the same in other memory."""

    @abstractmethod
    def num_bytes(self, packed: T) -> int:
        """Return the bytes of a copy."""

    @abstractmethod
    def call(self, gemm: GroupedGemm, packed: T, offsets: npt.NDArray[np.int32], on_gpu: Any) -> Call:
        """Return what enqueues the GEMM of one routing.

        Args:
            gemm: which.
            packed: a copy of the weights.
            offsets: of the routing, on the host.
            on_gpu: the same on the GPU, int32.
        """

    def config(self, gemm: GroupedGemm) -> str:  # noqa: ARG002
        """Return what it runs, in short; empty: it does not tell."""
        return ""

    def arrays(self, gemm: GroupedGemm) -> tuple[Any, Any]:
        """Return A and C, with room for the rows of the largest routing."""
        return self.operands.inputs(gemm.rows, gemm.layer.K), self.operands.output(gemm.rows, gemm.layer.N)

    def load(self, weights: ExpertWeights) -> None:
        """Pack weights, and copy them until they are cold when their turn comes again."""
        self.unload()
        packed = self.pack(weights)
        most = self.protocol.max_calls
        count = self.protocol.num_weight_copies(self.num_bytes(packed), self.device.l2_bytes, most)
        self.copies = [packed, *(self.copy(packed) for _ in range(count - 1))]

    def unload(self) -> None:
        """Give up the weights."""
        self.copies = []

    def bind(self, gemm: GroupedGemm) -> tuple[Bound, list[npt.NDArray[np.int32]]]:
        """Return calls that go round the copies and the routings, and the routing of each."""
        routings = gemm.routings
        on_gpu = [self.device.cupy.asarray(offsets) for offsets in routings]
        count = max(len(self.copies), len(routings))
        which = [place % len(routings) for place in range(count)]
        calls = [
            self.call(gemm, self.copies[place % len(self.copies)], routings[of], on_gpu[of])
            for place, of in enumerate(which)
        ]
        _, c = self.arrays(gemm)
        return Bound(calls, lambda: c, str(gemm.activation), self.config(gemm)), [routings[of] for of in which]


class OurGroupedEngine(GroupedEngine[GroupedW4]):
    """`w4a16_grouped_gemm(A, packed, offsets, out=C, expected_rows=...)`."""

    name: ClassVar[str] = "ours"

    def describe(self) -> str:
        """See `GroupedEngine`."""
        return with_version("gemm_eval")

    def prepare(self, gemms: Sequence[GroupedGemm]) -> None:
        """See `GroupedEngine`: on all cores of this machine, into the cache of compiled kernels."""
        variants = [make_variant(_chosen(gemm), gemm.activation, _MODE, gemm.group_size) for gemm in gemms]
        build_all(list(dict.fromkeys(variants)), limits_of_device(0))

    def config(self, gemm: GroupedGemm) -> str:
        """See `GroupedEngine`."""
        return kernel_in_short(_chosen(gemm))

    def pack(self, weights: ExpertWeights) -> GroupedW4:
        """See `GroupedEngine`."""
        return stack_w4(_packed_experts(weights))

    def copy(self, packed: GroupedW4) -> GroupedW4:
        """See `GroupedEngine`."""
        return replace(packed, qweight=packed.qweight.copy(), scales=packed.scales.copy())

    def num_bytes(self, packed: GroupedW4) -> int:
        """See `GroupedEngine`."""
        return packed.nbytes

    def call(self, gemm: GroupedGemm, packed: GroupedW4, offsets: npt.NDArray[np.int32], on_gpu: Any) -> Call:  # noqa: ARG002
        """See `GroupedEngine`."""
        a, c = self.arrays(gemm)
        return partial(
            w4a16_grouped_gemm, a, packed, on_gpu, out=c, stream=self.device.stream, expected_rows=gemm.expected_rows
        )


class OneLaunchEngine(GroupedEngine[list[PackedW4]]):
    """`w4a16_gemm` for each expert that has rows, whose numbers the host would have to know."""

    name: ClassVar[str] = "one-launch-a-group"

    def describe(self) -> str:
        """See `GroupedEngine`."""
        return f"{with_version('gemm_eval')}, w4a16_gemm for each expert with rows, in one CUDA graph"

    def prepare(self, gemms: Sequence[GroupedGemm]) -> None:
        """See `GroupedEngine`: on all cores of this machine, into the cache of compiled kernels."""
        spec, limits = spec_of_device(0), limits_of_device(0)
        wanted = {
            (int(rows), gemm.layer.K, gemm.layer.N, gemm.activation, gemm.group_size)
            for gemm in gemms
            for offsets in gemm.routings
            for rows in np.unique(np.diff(offsets))
            if rows
        }
        variants = []
        for rows, k, n, activation, group_size in sorted(wanted):
            config = choose(Sizes(rows, k, n), activation, _MODE, group_size, spec, limits)
            whole = config._replace(decomposition=Decomposition.DATA_PARALLEL, split_k=1)
            kept = config if config.family.endswith("_cluster") else whole
            variants.append(make_variant(kept, activation, _MODE, group_size))
        build_all(list(dict.fromkeys(variants)), limits)

    def pack(self, weights: ExpertWeights) -> list[PackedW4]:
        """See `GroupedEngine`."""
        return _packed_experts(weights)

    def copy(self, packed: list[PackedW4]) -> list[PackedW4]:
        """See `GroupedEngine`."""
        return [replace(one, qweight=one.qweight.copy(), scales=one.scales.copy()) for one in packed]

    def num_bytes(self, packed: list[PackedW4]) -> int:
        """See `GroupedEngine`."""
        return sum(one.nbytes for one in packed)

    def call(self, gemm: GroupedGemm, packed: list[PackedW4], offsets: npt.NDArray[np.int32], on_gpu: Any) -> Call:  # noqa: ARG002
        """See `GroupedEngine`."""
        a, c = self.arrays(gemm)
        launches = [
            partial(w4a16_gemm, a[start:stop], one, out=c[start:stop], stream=self.device.stream)
            for one, start, stop in zip(packed, offsets.tolist(), offsets[1:].tolist(), strict=False)
            if stop > start
        ]

        def enqueue() -> None:
            for launch in launches:
                launch()

        return enqueue


class HummingGroupedEngine(GroupedEngine[HummingWeights]):
    """humming-kernels' grouped GEMM of contiguous groups, by its own tables of configs."""

    name: ClassVar[str] = "humming"
    needs_torch: ClassVar[bool] = True

    def __init__(self, device: BenchDevice, operands: Operands, protocol: TimingProtocol) -> None:
        super().__init__(device, operands, protocol)
        self._torch = import_torch()
        self._rows: dict[ExpertLayer, set[int]] = {}
        self._config: Any = None

    @classmethod
    def why_missing(cls) -> str | None:
        """See `GroupedEngine`."""
        return HummingEngine.why_missing()

    def describe(self) -> str:
        """See `GroupedEngine`."""
        return f"{with_version('humming-kernels')}, torch {self._torch.__version__}, grouped contiguous"

    def _dtype(self, activation: DType) -> Any:
        return self._torch.float16 if activation is DType.FP16 else self._torch.bfloat16

    def prepare(self, gemms: Sequence[GroupedGemm]) -> None:
        """See `GroupedEngine`: only the kernels that these GEMMs run, of some layers at once."""
        for gemm in gemms:
            self._rows.setdefault(gemm.layer, set()).add(gemm.expected_rows)
        of_layers = {gemm.layer: gemm for gemm in gemms}
        with ThreadPoolExecutor(_LAYERS_AT_ONCE) as pool:
            list(pool.map(self._prepare_layer, of_layers.values()))

    def _prepare_layer(self, gemm: GroupedGemm) -> None:
        with needs_extra(_WHAT, "compare"):
            from humming.schema import HummingWeightSchema
            from humming.transform import prepare_layer_config

        with suppress(Exception):  # said again when the GEMM is bound
            config = prepare_layer_config(
                shape_n=gemm.layer.N,
                shape_k=gemm.layer.K,
                weight_schema=HummingWeightSchema.from_config(weight_config(gemm.group_size)),
                num_experts=gemm.layer.num_groups,
                torch_dtype=self._dtype(gemm.activation),
                device=0,
            )
            self._kernels(config, gemm.layer)

    def _kernels(self, config: Any, layer: ExpertLayer) -> Any:
        """Compile what a layer runs for all numbers of rows that are asked; a launch takes one of them."""
        with needs_extra(_WHAT, "compare"):
            from humming.kernel.humming import HummingKernel

        wanted = [entry for entry in _table(config) if any(is_in(rows, entry) for rows in self._rows[layer])]
        return HummingKernel.prepare_kernels(config.to_str(), json.dumps({"gemm_type": _GROUPED}), wanted, 0)

    def pack(self, weights: ExpertWeights) -> HummingWeights:
        """See `GroupedEngine`."""
        with needs_extra(_WHAT, "compare"):
            from humming.layer import HummingLayer
            from humming.ops import pack_weight

        torch, first, layer = self._torch, weights.experts[0], weights.layer
        is_bf16 = first.activation is DType.BF16
        module = HummingLayer(
            shape_n=layer.N,
            shape_k=layer.K,
            weight_config=weight_config(first.group_size),
            num_experts=layer.num_groups,
            torch_dtype=self._dtype(first.activation),
        ).cuda()
        words, scales = [], []
        for one in weights.experts:
            words.append(torch.cat([pack_weight(as_tensor(one.integers[rows]).int(), 4) for rows in one.chunks()]))
            scales.append(as_tensor(one.stored_scales(), is_bf16=is_bf16))
        module.load_from_tensors({"weight": torch.stack(words), "weight_scale": torch.stack(scales)})
        del words, scales
        module.transform()
        torch.cuda.synchronize()
        self._config = module.humming_config
        return HummingWeights.of_layer(module)

    def copy(self, packed: HummingWeights) -> HummingWeights:
        """See `GroupedEngine`."""
        return packed.copied()

    def num_bytes(self, packed: HummingWeights) -> int:
        """See `GroupedEngine`."""
        return packed.num_bytes

    def call(self, gemm: GroupedGemm, packed: HummingWeights, offsets: npt.NDArray[np.int32], on_gpu: Any) -> Call:  # noqa: ARG002
        """See `GroupedEngine`."""
        with needs_extra(_WHAT, "compare"):
            from humming.ops import launch_kernel

        is_bf16 = gemm.activation is DType.BF16
        kernels = self._kernels(self._config, gemm.layer)
        inputs, outputs = (as_tensor(array, is_bf16=is_bf16) for array in self.arrays(gemm))
        return partial(
            launch_kernel, configs=kernels, inputs=inputs, outputs=outputs, locks=packed.locks,
            expert_layout=as_tensor(on_gpu), valid_shape_m=gemm.expected_rows, **packed.tensors,
        )  # fmt: skip

    def config(self, gemm: GroupedGemm) -> str:
        """See `GroupedEngine`."""
        (entry,) = [entry for entry in _table(self._config) if is_in(gemm.expected_rows, entry)]
        return in_short(entry[2])


def _table(config: Any) -> Any:
    """Its own choice of kernels by rows: least (exclusive), largest, and config."""
    with needs_extra(_WHAT, "compare"):
        from humming.tune import get_heuristics_config

    return get_heuristics_config(config, gemm_type=_GROUPED, device=0)


_MODE = WeightMode.GROUP
_LAYERS_AT_ONCE = 3
_GROUPED = "grouped_contiguous"
_WHAT = "comparing with humming-kernels"

GROUPED_ENGINES: Mapping[str, type[GroupedEngine[Any]]] = {
    engine.name: engine for engine in (OurGroupedEngine, HummingGroupedEngine, OneLaunchEngine)
}
"""Engines by name, in the order in which they are timed."""


def _chosen(gemm: GroupedGemm) -> KernelConfig:
    """What `w4a16_grouped_gemm` runs."""
    layer = gemm.layer
    sizes = GroupedSizes(gemm.rows, layer.K, layer.N, layer.num_groups)
    of_types = gemm.activation, WeightMode.GROUP, gemm.group_size
    return choose_grouped(sizes, *of_types, gemm.expected_rows, False, spec_of_device(0), limits_of_device(0))


def _packed_experts(weights: ExpertWeights) -> list[PackedW4]:
    return [
        pack_w4(one.integers.T, one.group_size, _MODE, scales=one.scales.T, activation=one.activation)
        for one in weights.experts
    ]


def choose_grouped_engines(names: Sequence[str] = ()) -> tuple[list[type[GroupedEngine[Any]]], dict[str, str]]:
    """`choose_engines` of grouped GEMMs."""
    if unknown := [name for name in names if name not in GROUPED_ENGINES]:
        raise InvalidOptionError(
            f"--engine must be one of {', '.join(GROUPED_ENGINES)} with --grouped, got {shown(unknown[0])}"
        )
    ours = next(iter(GROUPED_ENGINES))
    wanted = [engine for name, engine in GROUPED_ENGINES.items() if name == ours or not names or name in names]
    missing = {engine.name: reason for engine in wanted if (reason := engine.why_missing()) is not None}
    return [engine for engine in wanted if engine.name not in missing], missing


def compare_grouped_engines(
    device: BenchDevice,
    engines: Sequence[type[GroupedEngine[Any]]],
    grid: ExpertGrid,
    *,
    protocol: TimingProtocol = PROTOCOL,
    progress: bool | None = None,
    on_pair: Callable[[SideBySide], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> SideBySide:
    """`compare_engines` of grouped GEMMs; what stands as M in a timing are the tokens."""
    gemms = [gemm for layer in grid.layers for gemm in grid.gemms(layer)]
    activation = DType(grid.dtype)
    largest = max(gemm.rows * gemm.layer.K for gemm in gemms), max(gemm.rows * gemm.layer.N for gemm in gemms)
    with device.stream:
        operands = Operands(device, activation, *largest)
        ready = [engine(device, operands, protocol) for engine in engines]
        found = SideBySide(grid, device.gpu_name, {engine.name: engine.describe() for engine in ready})
        for engine in ready:
            engine.prepare(gemms)
        floor_us = measure_floor_us(device)
        with progress_bar(len(gemms), "grouped GEMMs", progress) as advance:
            for layer in grid.layers:
                weights = ExpertWeights.random(device, layer, grid.group_size, activation)
                loaded = list(_loaded(ready, weights, found, layer))
                for gemm in grid.gemms(layer):
                    timings, failures = time_engines(
                        device, {engine.name: partial(_bound, device, engine, gemm, weights) for engine in loaded},
                        (layer.N, layer.K, gemm.tokens), protocol, floor_us, sleep,
                    )  # fmt: skip
                    found.timings += timings
                    found.failures += failures
                    advance(1)
                for engine in ready:
                    engine.unload()
                del weights
                device.free_unused()
                if on_pair is not None:
                    on_pair(found)
    return found


def _loaded(
    engines: Sequence[GroupedEngine[Any]], weights: ExpertWeights, found: SideBySide, layer: ExpertLayer
) -> Iterator[GroupedEngine[Any]]:
    for engine in engines:
        try:
            engine.load(weights)
        except Exception as error:  # whatever a library says of these sizes: the others may take them
            engine.unload()
            found.failures.append(EngineFailure(layer.N, layer.K, None, engine.name, told(error)))
        else:
            yield engine


def _bound(
    device: BenchDevice, engine: GroupedEngine[Any], gemm: GroupedGemm, weights: ExpertWeights
) -> tuple[Bound, float]:
    """Bind, and run every call once, which is then ready to be captured; the first and the last are checked.

    Raises:
        GemmEvalError: a result is wrong.
    """
    bound, routings = engine.bind(gemm)
    errors = []
    for place, (call, offsets) in enumerate(zip(bound.calls, routings, strict=True)):
        is_checked = place in (0, len(routings) - 1)
        if is_checked:
            engine.operands.poison()
        call()
        device.synchronize()
        if is_checked:
            errors.append(weights.sample_error(engine.operands, offsets, bound.read(), bound.dtype))
    return bound, largest_error(errors, bound.dtype)
