"""Our own kernels for 4-bit weights, each config by itself, on random packed weights; tokens of 16 bits or e4m3."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from gemm_eval import device, kernels
from gemm_eval.arch import DeviceLimits
from gemm_eval.device import Rows
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, UnsupportedError
from gemm_eval.kernels import QuantizedTokens, dequantize_tokens, padded_k, quantize_rows, quantized_bytes, scale_unit
from gemm_eval.kernels.families import Operands, Sizes, Variant, WeightMode, ceil_div, family_of
from gemm_eval.measure.runner import MAX_ERRORS, BuiltKernel, Runner, decode, measure_shape, relative_error
from gemm_eval.measure.shapes import KernelItem, QuantShape
from gemm_eval.progress import progress_bar
from gemm_eval.storage import cache_dir
from gemm_eval.words import shown

SCALES_SHARE = 4
"""The pool of weights is so many times that of scales: a scale and a zero point for 32 weights take a quarter."""

_ALIGN_BYTES = 256
_BLOCK_BYTES = kernels.BLOCK_COLUMNS * kernels.BLOCK_K // 2
_WORDS = 1 << 24
_PATTERN_SHAPE = 64, 1 << 14  # groups, columns
_LEAST_SCALE, _LARGEST_SCALE = 0.005, 0.015  # products of normal activations stay far from the largest fp16
_E8M0_SCALES = (118, 121)  # bytes: 2^-9 to 2^-7
_E4M3_SCALES = (0x70, 0x7F)  # bytes: 128 to 448
_LARGEST_E4M3 = 448
_FP4_COLUMNS = 1 << 12


class PackedSizes(NamedTuple):
    """Packed weights of one GEMM: NB, KB and GB of KERNELS.md, and bytes."""

    num_column_blocks: int
    num_k_blocks: int
    num_groups: int
    qweight_bytes: int
    scales_bytes: int


def packed_sizes(item: KernelItem | QuantShape) -> PackedSizes:
    """Return the sizes of the packed weights of a GEMM."""
    num_columns, num_k = ceil_div(item.N, kernels.BLOCK_COLUMNS), kernels.k_blocks(item.K)
    num_groups = kernels.scale_rows(item.mode, num_k, item.group_size)
    scale_bytes = np.dtype(kernels.scales_dtype(item.mode, DType.FP16)).itemsize
    scales = scale_bytes * prod(kernels.scales_shape(item.mode, num_columns, num_groups))
    return PackedSizes(num_columns, num_k, num_groups, num_columns * num_k * _BLOCK_BYTES, scales)


def copy_bytes(item: KernelItem | QuantShape) -> int:
    """Return the distance of two copies in the pool; a quarter of it keeps copies of the scales aligned and apart."""
    sizes, step = packed_sizes(item), SCALES_SHARE * _ALIGN_BYTES
    return ceil_div(sizes.qweight_bytes + sizes.scales_bytes, step) * step


def pattern_unit(mode: WeightMode, activation: DType) -> float:
    """Return `PackedW4.scale_unit` of what `scale_pattern` returns."""
    if mode.is_fp4:
        return _fp4_weights(mode, activation, 0, columns=kernels.BLOCK_COLUMNS).scale_unit
    if mode is not WeightMode.GROUP:
        return 1.0
    unit = scale_unit(np.full((1, 1), _LARGEST_SCALE), activation)
    assert unit is not None  # one value spans nothing
    return unit


def scale_pattern(mode: WeightMode, activation: DType, seed: int) -> npt.NDArray[Any]:
    """Return packed scales, and zero points in mode GROUP_ZERO, of a matrix; any part of them is valid."""
    if mode.is_fp4:
        return _fp4_weights(mode, activation, seed).scales
    rng, shape = np.random.default_rng(seed), _PATTERN_SHAPE
    scales = rng.uniform(_LEAST_SCALE, _LARGEST_SCALE, shape).astype(np.float32) / pattern_unit(mode, activation)
    zeros = rng.integers(0, 16, shape, dtype=np.uint8) if mode is WeightMode.GROUP_ZERO else None
    return kernels.pack_scales(scales, zeros, mode, activation)


def _fp4_weights(mode: WeightMode, activation: DType, seed: int, columns: int = _FP4_COLUMNS) -> kernels.PackedW4:
    """Return weights whose scales are a pattern; all codes are 1."""
    groups = _PATTERN_SHAPE[0]
    low, high = _E8M0_SCALES if mode is WeightMode.MXFP4 else _E4M3_SCALES
    scales = np.random.default_rng(seed).integers(low, high, (groups, columns), dtype=np.uint8)
    scales[0, 0] = high - 1  # what the unit goes by
    codes = np.ones((groups * mode.group_sizes[0], columns), np.uint8)
    return kernels.pack_fp4(kernels.QuantizedFp4(codes, scales, _LARGEST_SCALE / _LARGEST_E4M3), mode, activation)


_FEW = 4  # starting processes takes longer


def build_all(variants: Sequence[Variant], limits: DeviceLimits) -> None:
    """Compile kernels for a GPU into the cache on disk; without that, each is compiled when it is first used."""
    if cache_dir() is None:
        return
    compile_one = partial(_compile, limits)
    workers = 1 if len(variants) <= _FEW else min(os.cpu_count() or 1, len(variants))
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(progress_bar(len(variants), "compiling kernels", None))
        done: Iterator[None] = map(compile_one, variants)
        if workers > 1:
            context = multiprocessing.get_context("spawn")  # a fork would inherit a driver that does not survive it
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=context))
            done = (future.result() for future in as_completed([pool.submit(compile_one, of) for of in variants]))
        for _ in done:
            advance(1)


def _compile(limits: DeviceLimits, variant: Variant) -> None:
    with contextlib.suppress(GemmEvalError):  # said again when the kernel is bound
        kernels.compile_for(variant, limits)


@dataclass
class _Reading:
    """The runner, except that a call reads a copy of the weights and nothing else."""

    runner: W4A16Runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def bind(self, shape: KernelItem, weight_offsets: Sequence[int]) -> Sequence[device.Call]:
        num_bytes = self.runner.weight_bytes(shape)
        pool = self.runner.buffers["W"]
        return [
            partial(self.runner.read_bytes, pool.data.ptr + offset, num_bytes)
            for offset in weight_offsets
            if offset + num_bytes <= pool.nbytes
        ]


def measure_read_us(
    runner: W4A16Runner, item: KernelItem, protocol: device.TimingProtocol, *, floor_us: float = 0.0
) -> float:
    """Time one cold pass over as many bytes as the packed weights and scales of `item` have, in us."""
    return measure_shape(cast(Runner, _Reading(runner)), item, protocol, floor_us=floor_us).latency_us


_CHECK_ROWS, _CHECK_K, _CHECK_N = (40, 8, 1), 512, 256
_MIN_BUFFER_BYTES = 1 << 20  # the check's operands fit
_NUM_SAMPLES = 1 << 16
_NUM_REFERENCE_ROWS = 16
_NAN_BITS = 0xFFFF  # in fp16 and bf16
_HASH_DIGITS = 16


class W4A16Runner(device.BenchDevice):
    """Our kernels for 4-bit weights with fp16 or bf16 activations; an item is a `KernelItem`."""

    kernel = "w4a16"
    weight_dtype = "int4"
    is_fp8 = False  # A

    def __init__(self, dtype: str) -> None:
        if dtype not in MAX_ERRORS:
            raise UnsupportedError(f"--kernel {self.kernel} measures {', '.join(MAX_ERRORS)}, got {shown(dtype)}")
        super().__init__()
        self.input_dtype = self.output_dtype = dtype
        self.activation = DType(dtype)
        self.limits = device.limits_of_device(0)
        self.spec = kernels.spec_of_device(0)
        self.pool_bytes = 0
        self.buffers: dict[str, Any] = {}
        self._scale_mode: WeightMode | None = None
        self._items: list[KernelItem] = []
        self._bound: tuple[KernelItem, kernels.Plan[Operands]] | None = None
        self._reference: tuple[Any, npt.NDArray[np.float64]] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the state of the kernels and the compiler, without which times do not compare."""
        digest = hashlib.sha256()
        for path in sorted(kernels.SOURCES.iterdir()):
            digest.update(path.name.encode() + path.read_bytes())
        return {"kernels": digest.hexdigest()[:_HASH_DIGITS], "compiler": device.compiler_version()}

    def prepare(self, items: Sequence[KernelItem]) -> None:
        """See `Runner`: on all cores, into the cache of compiled kernels, which do not depend on how K is cut."""
        variants: dict[Variant, None] = {}
        for item in items:
            config = family_of(item.config).compiled(item.config)
            variants[kernels.make_variant(config, self.activation, item.mode, item.group_size)] = None
        build_all(list(variants), self.limits)

    def allocate(self, shapes: Sequence[KernelItem], pool_bytes: int) -> None:
        self._items = list(shapes)
        self.buffers = {
            "A": self.empty_bytes(max(_MIN_BUFFER_BYTES, *(2 * s.M * s.K for s in shapes))),
            "W": self.empty_bytes(max(_MIN_BUFFER_BYTES, pool_bytes)),
            "S": self.empty_bytes(max(_MIN_BUFFER_BYTES, pool_bytes // SCALES_SHARE)),
            "C": self.empty_bytes(max(_MIN_BUFFER_BYTES, *(2 * s.M * s.N for s in shapes))),
        }
        self.fill_normal(self.buffers["A"], 1, is_bf16=self.activation is DType.BF16)
        self.pool_bytes = self.buffers["W"].nbytes
        self._fill_weights()

    def _fill_weights(self) -> None:
        # nibbles are all equally likely
        self._repeat(self.buffers["W"], np.random.default_rng(2).integers(0, 1 << 32, _WORDS, dtype=np.uint32))
        self._scale_mode = None

    def _repeat(self, buffer: Any, pattern: npt.NDArray[Any]) -> None:
        """Fill a buffer with copies of a pattern: its places in memory differ, and that is what caches go by."""
        first = self.cupy.asarray(pattern.reshape(-1).view(np.uint8))
        for start in range(0, buffer.nbytes, first.nbytes):
            part = buffer[start : start + first.nbytes]
            part[...] = first[: part.nbytes]
        self.cupy.cuda.runtime.deviceSynchronize()

    def weight_bytes(self, shape: KernelItem) -> int:
        return copy_bytes(shape)

    def bind(self, shape: KernelItem, weight_offsets: Sequence[int]) -> Sequence[device.Call]:
        """See `Runner`; GemmEvalError: a kernel cannot be built or loaded, or its first call computes wrong."""
        if shape.mode is not self._scale_mode:
            self._repeat(self.buffers["S"], scale_pattern(shape.mode, self.activation, 3))
            self._scale_mode = shape.mode
        calls = self._bind(shape, weight_offsets, pattern_unit(shape.mode, self.activation))
        self._check_output(shape, calls[0])
        return calls

    def _bind(self, item: KernelItem, weight_offsets: Sequence[int], scale_unit: float) -> list[device.Call]:
        sizes, packed = Sizes(item.M, item.K, item.N), packed_sizes(item)
        types = self.activation, item.mode, item.group_size
        plan = kernels.make_plan(sizes, *types, item.config, self.limits, is_fp8=self.is_fp8)
        launch = plan.launch
        function = device.load_function(plan.compiled, 0, launch.smem_bytes, self.stream.ptr)
        workspace = self._scratch("workspace", launch.workspace_bytes)
        counters = self._scratch("counters", 4 * launch.num_counters)
        self.cupy.cuda.runtime.memsetAsync(counters, 0, self.buffers["counters"].nbytes, self.stream.ptr)
        addresses = {name: buffer.data.ptr for name, buffer in self.buffers.items()}
        tokens, row = self._tokens_of(item)
        calls: list[device.Call] = []
        for offset in weight_offsets:
            operands = Operands(
                a=tokens, lda=row, qweight=addresses["W"] + offset, scales=addresses["S"] + offset // SCALES_SHARE,
                bias=0, c=addresses["C"], workspace=workspace, counters=counters, alpha=scale_unit,
                num_column_blocks=packed.num_column_blocks, num_k_blocks=packed.num_k_blocks,
                num_groups=packed.num_groups,
            )  # fmt: skip
            block, arguments = (launch.num_threads, 1, 1), plan.arguments(operands)
            calls.append(partial(function, launch.grid, block, arguments, launch.smem_bytes, self.stream))
        self._bound = item, plan
        return calls

    def _tokens_of(self, item: KernelItem) -> tuple[int, int]:
        """Return the address of A, and elements from row to row."""
        return self.buffers["A"].data.ptr, item.K

    def _inputs_of(self, item: KernelItem, rows: Any) -> npt.NDArray[np.float64]:
        """Return what some rows of A mean."""
        bits = self.buffers["A"][: 2 * item.M * item.K].view(np.uint16).reshape(item.M, item.K)[rows]
        return decode(self.cupy.asnumpy(bits), self.input_dtype, bits.shape)

    def _scratch(self, name: str, num_bytes: int) -> int:
        """Return the address of a buffer of at least so many bytes."""
        if name not in self.buffers or self.buffers[name].nbytes < num_bytes:
            self.buffers[name] = self.empty_bytes(max(num_bytes, _MIN_BUFFER_BYTES))
        return int(self.buffers[name].data.ptr)

    def _check_output(self, item: KernelItem, call: device.Call) -> None:
        """Compare a sample of C with what the first kernel of the same GEMM gave, and that one with float64."""
        out = self.buffers["C"][: 2 * item.M * item.N].view(np.uint16)
        sample = out[:: int(out.size // _NUM_SAMPLES) | 1]  # an odd step meets all columns of all tiles
        reference = self._reference if self._reference and self._reference[0] == item[:6] else None
        self._run_poisoned(sample if reference else out, call)
        values = decode(self.cupy.asnumpy(sample), self.output_dtype, sample.shape)
        if reference:
            self._refuse_if_wrong(item, relative_error(values, reference[1]))
        else:
            self._check_exactly(item, out.reshape(item.M, item.N))
            self._reference = item[:6], values

    def _run_poisoned(self, out: Any, call: device.Call) -> None:
        with self.stream:
            out.fill(_NAN_BITS)
        call()
        self.synchronize()

    def _check_exactly(self, item: KernelItem, out: Any) -> None:
        """Compare the last block of columns, in some rows, with float64."""
        rows = np.unique(np.linspace(0, item.M - 1, _NUM_REFERENCE_ROWS).astype(np.int64))
        host, on_device = self.cupy.asnumpy, self.cupy.asarray(rows)
        inputs = self._inputs_of(item, on_device)
        weights = kernels.dequantize(self._last_block(item))
        columns = item.N - weights.shape[1] * (packed_sizes(item).num_column_blocks - 1)
        outputs = host(out[on_device, item.N - columns :])
        reference = inputs @ weights[:, :columns]
        self._refuse_if_wrong(item, relative_error(decode(outputs, self.output_dtype, outputs.shape), reference))

    def _last_block(self, item: KernelItem) -> kernels.PackedW4:
        """Return the last 64 columns of the first copy of the weights, on the CPU."""
        packed = packed_sizes(item)
        words = self.buffers["W"][: packed.qweight_bytes].view(np.uint32)
        dtype = np.dtype(kernels.scales_dtype(item.mode, self.activation))
        scales = self.buffers["S"][: packed.scales_bytes].view(dtype)
        last_words, last_scales = (
            self.cupy.asnumpy(part[-(part.size // packed.num_column_blocks) :]) for part in (words, scales)
        )
        return kernels.PackedW4(
            last_words.reshape(1, packed.num_k_blocks, 4, 32, 4),
            last_scales.reshape(kernels.scales_shape(item.mode, 1, packed.num_groups)), kernels.BLOCK_COLUMNS, item.K,
            item.mode, item.group_size, self.activation, pattern_unit(item.mode, self.activation),
        )  # fmt: skip

    def _refuse_if_wrong(self, item: KernelItem, error: float) -> None:
        if not error < MAX_ERRORS[self.output_dtype]:  # NaN does not pass
            sizes = f"M, K, N = {item.M}, {item.K}, {item.N}, {item.mode.name} {item.group_size}"
            raise GemmEvalError(f"{self.kernel} {self.input_dtype} is wrong for {sizes} by {item.config}: {error:.2g}")

    def check(self) -> Mapping[str, float]:
        """See `Runner`: one kernel of each family and kind of weights that the items have."""
        kinds = sorted({(item.config.family, item.mode, item.group_size) for item in self._items})
        errors = {
            f"{family} {WeightMode(mode).name.lower()} {group}": self._check_kind(family, mode, group)
            for family, mode, group in kinds
        }
        self._fill_weights()
        return errors

    def _check_kind(self, family: str, mode: WeightMode, group_size: int) -> float:
        item = self._check_item(family, mode, group_size)
        rng = np.random.default_rng(4)
        weights = rng.normal(0.0, 0.02, (item.K, item.N)).astype(np.float32)
        packed = kernels.pack_w4(weights, group_size or None, mode.name.lower(), activation=self.activation)
        for name, values in (("W", packed.qweight), ("S", packed.scales)):
            self.buffers[name][: values.nbytes] = self.cupy.asarray(values.reshape(-1).view(np.uint8))
        self.cupy.cuda.runtime.deviceSynchronize()
        out = self.buffers["C"][: 2 * item.M * item.N].view(np.uint16)
        self._run_poisoned(out, self._bind(item, (0,), packed.scale_unit)[0])
        reference = self._inputs_of(item, slice(None)) @ kernels.dequantize(packed)
        outputs = decode(self.cupy.asnumpy(out), self.output_dtype, (item.M, item.N))
        self._refuse_if_wrong(item, error := relative_error(outputs, reference))
        return error

    def _check_item(self, family: str, mode: WeightMode, group_size: int) -> KernelItem:
        """Return a small GEMM with the first config of a family that takes it."""
        for rows in _CHECK_ROWS:
            sizes = Sizes(rows, _CHECK_K, _CHECK_N)
            types = self.activation, mode, group_size
            for config in kernels.legal_configs(sizes, self.limits, *types, is_fp8=self.is_fp8):
                if config.family == family:
                    return KernelItem(1, *sizes, mode, group_size, config)
        raise GemmEvalError(f"no kernel of {family} takes any of the small GEMMs of the check")

    def built(self, item: KernelItem) -> BuiltKernel:
        if self._bound is None or self._bound[0] != item:
            raise GemmEvalError(f"{item} is not what was bound last")
        variant, launch, compiled, _ = self._bound[1]
        occupancy = kernels.occupancy_of(variant, compiled, self.limits)
        return BuiltKernel(
            compiled.entry, 1, *launch.grid, launch.num_threads, compiled.registers, occupancy.smem_bytes,
            occupancy.spill_bytes, occupancy.ctas_per_sm, hashlib.sha256(compiled.cubin).hexdigest()[:_HASH_DIGITS],
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        return {
            "library": "gemm_eval",
            "library_version": version("gemm_eval"),
            "compiler": device.compiler_version(),
            "routines": "kernels of gemm_eval.kernels, launched with arguments made beforehand; alpha 1, no bias",
            "layouts": "A[M,K] and C[M,N] row-major; B packed as gemm_eval/kernels/KERNELS.md says",
            "data": "standard normal A; 4-bit integers and fp4 codes all equally likely, scales 0.005 to 0.015; "
            "2^-9 to 2^-7 (mxfp4), 0.004 to 0.015 (nvfp4)",
            "single_pass_read_us": self._read_times(),
            "checks": "each kernel before it is timed: the first of a GEMM against float64 in the last 64 columns of "
            f"{_NUM_REFERENCE_ROWS} rows, the others against the first in about {_NUM_SAMPLES} elements",
        }

    def _read_times(self) -> dict[str, float]:
        """Time a cold pass over each matrix with groups of 128, by "N x K": the lower bound of few tokens."""
        floor_us = device.measure_floor_us(self)
        sized = {f"{item.N} x {item.K}": item for item in self._items if item[4:6] == (WeightMode.GROUP, 128)}
        return {
            name: round(measure_read_us(self, item, device.TimingProtocol(), floor_us=floor_us), 2)
            for name, item in sized.items()
        }


class W4A8Runner(W4A16Runner):
    """Our kernels for 4-bit weights with e4m3 tokens; C has the type that is asked for, fp16 or bf16."""

    kernel = "w4a8"
    is_fp8 = True

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.input_dtype = str(DType.FP8)
        self._quantized: tuple[int, int] | None = None

    def allocate(self, shapes: Sequence[KernelItem], pool_bytes: int) -> None:
        """See `Runner`: beside activations, room for those of any shape quantized."""
        super().allocate(shapes, pool_bytes)
        self.buffers["T"] = self.empty_bytes(max(quantized_bytes(max(s.M, 40), max(s.K, 512)) for s in shapes))
        self._quantized = None

    def _tokens_of(self, item: KernelItem) -> tuple[int, int]:
        to, row = self.buffers["T"].data.ptr, padded_k(item.K)
        if self._quantized != (item.M, item.K):
            a = Rows(self.buffers["A"].data.ptr, item.M, item.K, item.K)
            quantize_rows(a, self.activation, 0, to, 0, self.stream.ptr)
            self._quantized = item.M, item.K
        return to, row

    def _inputs_of(self, item: KernelItem, rows: Any) -> npt.NDArray[np.float64]:
        """See `W4A16Runner`: what their bytes mean."""
        self.synchronize()
        tokens = QuantizedTokens(self.cupy.asnumpy(self.buffers["T"]), (item.M, item.K))
        chosen = self.cupy.asnumpy(rows) if not isinstance(rows, slice) else rows
        return np.asarray(dequantize_tokens(tokens)[chosen])

    def describe(self) -> dict[str, Any]:
        description = super().describe()
        description["data"] += "; A rounded to e4m3 with a scale for each row, before it is timed"
        return description
