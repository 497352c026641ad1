"""GEMMs with 4-bit weights that engines are compared on, dense and grouped, and the operands that all engines share.

A dense GEMM is a layer of one expert that every token goes to, so that one set of classes serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.device import BenchDevice
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.kernels import MIDDLE, WeightMode, encode
from gemm_eval.kernels.layout import E2M1_VALUES, e4m3_values, e8m0_values, parse_group_size, parse_mode
from gemm_eval.measure.runner import MAX_ERRORS, decode
from gemm_eval.moe import uniform_counts
from gemm_eval.words import shown

DEFAULT_PAIRS = (
    (1280, 8192), (1536, 7168), (2560, 9728), (3584, 18944), (4096, 4096), (4096, 14336), (6144, 4096), (8192, 28672),
    (10240, 8192), (12288, 4096), (28672, 8192), (43008, 5376),
)  # fmt: skip
"""(N, K) of layers of models with 4 to 70 billion parameters, whole and on several GPUs."""
DEFAULT_ROWS = (1, 4, 12, 24, 40, 64, 100, 192, 320, 512, 768, 1200, 2048, 3500)
"""M of every regime, few of them powers of 2."""
DEFAULT_TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
"""Tokens of all GPUs together."""
_ROUTINGS = 8
_SEED = 20_261_123
_PATTERN_ELEMS = (1 << 24) - 3  # odd: rows of a matrix start at different places of it
# Scales of 8 significant bits, which fp16 and bf16 hold; products of normal activations stay far from the largest fp16.
_SCALE_STEP, _LEAST_STEPS, _MOST_STEPS = 2.0**-14, 128, 256
_E8M0_BYTES, _E4M3_BYTES, TENSOR_SCALE = (118, 121), (0x70, 0x7F), 2.0**-15
"""Scales of four-bit floats, as bytes (the last is excluded), and the one of all weights in mode NVFP4."""
_INTEGERS = np.arange(16.0) - MIDDLE
_CHUNK_ELEMS = 1 << 26
_NUM_ROWS, _NUM_COLUMNS = 16, 64
_NAN_BYTE = 0xFF  # of an fp16 and of a bf16
_BYTES_PER_ELEM = 2

Offsets = npt.NDArray[np.int32]
"""First row of each expert, and the end of the last: [num_groups + 1]."""


class Layer(NamedTuple):
    """A GEMM of a layer, as a GPU has it: of one matrix, or of the experts of a mixture.

    Attributes:
        name: for options and tables; empty: a dense GEMM.
        num_groups: experts on the GPU.
        num_experts: of the layer, on all GPUs.
        topk: experts of a token.
        N, K: of each expert.
    """

    name: str
    num_groups: int
    num_experts: int
    topk: int
    N: int
    K: int

    @classmethod
    def dense(cls, N: int, K: int) -> Layer:
        """Return the layer of a dense GEMM."""
        return cls("", 1, 1, 1, N, K)

    @property
    def is_grouped(self) -> bool:
        """True for a layer of experts."""
        return bool(self.name)

    def expected_rows(self, tokens: int) -> int:
        """Return the mean number of rows on this GPU, rounded up: all that a caller knows before the routing."""
        return -(-tokens * self.topk * self.num_groups // self.num_experts)


# hidden_size, moe_intermediate_size, routed experts and experts of a token as in each model's config.json
EXPERT_LAYERS = (
    Layer("mixtral-8x7b-up", 8, 8, 2, 28672, 4096),
    Layer("mixtral-8x7b-down", 8, 8, 2, 4096, 14336),
    Layer("qwen3-30b-a3b-up", 128, 128, 8, 1536, 2048),
    Layer("qwen3-30b-a3b-down", 128, 128, 8, 2048, 768),
    Layer("deepseek-v3-ep8-up", 32, 256, 8, 4096, 7168),
    Layer("deepseek-v3-ep8-down", 32, 256, 8, 7168, 2048),
)
"""The two GEMMs of experts of three models; DeepSeek-V3 on 8 GPUs that have 32 experts each."""


@dataclass(frozen=True)
class Gemm:
    """A layer with tokens: C[rows,N] = A[rows,K] x W[N,K]^T with 4-bit weights, rows in the order of their experts.

    Attributes:
        layer: the weights' sizes.
        tokens: of all GPUs; M of a dense GEMM.
        group_size: weights along K that share a scale; 0: all of them.
        activation: type of A and C.
        mode: of the weights.
    """

    layer: Layer
    tokens: int
    group_size: int
    activation: DType
    mode: WeightMode = WeightMode.GROUP

    @cached_property
    def routings(self) -> list[Offsets]:
        """Routings drawn at random, none of them empty; the one of a dense GEMM."""
        layer = self.layer
        if not layer.is_grouped:
            return [np.array([0, self.tokens], np.int32)]
        rng = np.random.default_rng([_SEED, self.tokens, *layer[1:]])
        routings: list[Offsets] = []
        while len(routings) < _ROUTINGS:
            counts = uniform_counts(self.tokens, layer.num_experts, layer.topk, rng)[0, : layer.num_groups]
            if counts.any():
                routings.append(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
        return routings

    @property
    def rows(self) -> int:
        """Rows of the largest routing, which A has room for."""
        return max(int(offsets[-1]) for offsets in self.routings)

    @property
    def expected_rows(self) -> int:
        """Rows that engines are told which choose a kernel by their number."""
        return min(self.rows, self.layer.expected_rows(self.tokens))


@dataclass(frozen=True)
class Grid:
    """The GEMMs that are compared: every number of rows (or tokens) on every layer.

    Attributes:
        layers: dense ones, or experts.
        rows: values of M, or tokens of all GPUs.
        group_size: weights along K that share a scale; None: 128, or what the mode has.
        dtype: "fp16" or "bf16", of A and C.
        mode: of the weights, a name of `WeightMode` in lower case.

    Raises:
        InvalidOptionError: a value out of its range.
    """

    layers: Sequence[Layer] = tuple(Layer.dense(*pair) for pair in DEFAULT_PAIRS)
    rows: Sequence[int] = DEFAULT_ROWS
    group_size: int | None = None
    dtype: str = "fp16"
    mode: str = "group"

    @classmethod
    def dense(cls, pairs: Sequence[tuple[int, int]] = DEFAULT_PAIRS, **options: Any) -> Grid:
        """Return the grid of dense GEMMs with these (N, K)."""
        return cls(tuple(Layer.dense(*pair) for pair in pairs), **options)

    @classmethod
    def experts(cls, names: Sequence[str] = (), rows: Sequence[int] = DEFAULT_TOKENS, **options: Any) -> Grid:
        """Return the grid of the layers of experts with these names; all layers where none is given."""
        known = {layer.name: layer for layer in EXPERT_LAYERS}
        if unknown := [name for name in names if name not in known]:
            raise InvalidOptionError(f"--layer must be one of {', '.join(known)}, got {shown(unknown[0])}")
        return cls(tuple(known[name] for name in names) or EXPERT_LAYERS, rows, **options)

    def __post_init__(self) -> None:
        if self.dtype not in MAX_ERRORS:
            raise InvalidOptionError(f"--activation must be one of {', '.join(MAX_ERRORS)}, got {shown(self.dtype)}")
        mode = parse_mode(self.mode)
        multiple = parse_group_size(self.group_size, mode) or 8
        for layer in self.layers:
            if layer.N < 1 or layer.K < 1 or layer.N % 8 or layer.K % multiple:
                raise InvalidOptionError(
                    f"--pair must be K,N with K a multiple of {multiple} and N of 8, got {layer.K},{layer.N}"
                )
        if not self.layers or not self.rows or min(self.rows) < 1:
            raise InvalidOptionError(f"--rows must be integers >= 1, got {', '.join(map(str, self.rows)) or 'none'}")

    @property
    def is_grouped(self) -> bool:
        """True where the layers are experts."""
        return self.layers[0].is_grouped

    def gemms(self, layer: Layer) -> list[Gemm]:
        """Return the GEMMs of a layer, by rows."""
        mode = parse_mode(self.mode)
        group_size = parse_group_size(self.group_size, mode)
        return [Gemm(layer, rows, group_size, DType(self.dtype), mode) for rows in sorted(set(self.rows))]


@dataclass(frozen=True)
class Weights:
    """A matrix of weights on the GPU: W[n, k] = scales[n, g] * (codes[n, k] - zeros[n, g]), g = k // group_size.

    Attributes:
        N, K: columns of C, and reduction length.
        codes: uint8 [N, K], all of 0..15 equally likely: integers, or the codes of e2m1 numbers.
        scales: float32 [N, G], each a value of the type of the activations; of four-bit floats, of their bytes.
        scale_bytes: uint8 [N, G], e8m0 in mode MXFP4, e4m3 in mode NVFP4; in the others None.
        zeros: uint8 [N, G] in mode GROUP_ZERO; in the others None: 8 of integers, 0 of floats.
        group_size: weights along K that share a scale; 0: all of them.
        activation: type of the activations and of the stored scales of integers.
        mode: of the weights.
        xp: the library of the arrays.
    """

    N: int
    K: int
    codes: Any
    scales: Any
    scale_bytes: Any
    zeros: Any
    group_size: int
    activation: DType
    mode: WeightMode
    xp: Any

    @classmethod
    def random(cls, device: BenchDevice, gemm: Gemm, seed: int = 2) -> Weights:
        """Make weights of the size and mode of `gemm`."""
        (N, K), group_size, mode = gemm.layer[4:], gemm.group_size, gemm.mode
        rng, xp = np.random.default_rng(seed), device.cupy
        pattern = xp.asarray(rng.integers(0, 16, min(_PATTERN_ELEMS, N * K), dtype=np.uint8))
        codes = xp.empty(N * K, np.uint8)
        for start in range(0, N * K, pattern.size):
            part = codes[start : start + pattern.size]
            part[...] = pattern[: part.size]
        shape = N, K // (group_size or K)
        scale_bytes = zeros = None
        if mode.is_fp4:
            is_mx = mode is WeightMode.MXFP4
            scale_bytes = xp.asarray(rng.integers(*(_E8M0_BYTES if is_mx else _E4M3_BYTES), shape, dtype=np.uint8))
            scales = e8m0_values(scale_bytes) if is_mx else e4m3_values(scale_bytes) * TENSOR_SCALE
        else:
            scales = xp.asarray(rng.integers(_LEAST_STEPS, _MOST_STEPS, shape) * _SCALE_STEP)
        if mode is WeightMode.GROUP_ZERO:
            zeros = xp.asarray(rng.integers(0, 16, shape, dtype=np.uint8))
        scales = scales.astype(np.float32)
        return cls(N, K, codes.reshape(N, K), scales, scale_bytes, zeros, group_size, gemm.activation, mode, xp)

    def stored_scales(self) -> Any:
        """Return scales as they are stored: float16 [N, G], or the bits of a bf16 in a uint16."""
        return encode(self.scales, self.activation)

    def dense(self) -> Any:
        """Return W[N, K] in the type of the activations, rounded: float16, or the bits of a bf16 in a uint16."""
        return self.xp.concatenate([encode(self._values(rows, np.float32), self.activation) for rows in self.chunks()])

    def chunks(self) -> list[slice]:
        """Return rows [N] in parts small enough for wide intermediate values."""
        step = max(1, _CHUNK_ELEMS // self.K)
        return [slice(start, start + step) for start in range(0, self.N, step)]

    def columns(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return some columns of W^T, [K, len(indices)], exactly, on the CPU."""
        exact: npt.NDArray[np.float64] = _to_host(self._values(self.xp.asarray(indices), np.float64)).T
        return exact

    def _values(self, rows: Any, dtype: Any) -> Any:
        xp, group = self.xp, self.group_size or self.K
        values = xp.asarray(E2M1_VALUES if self.mode.is_fp4 else _INTEGERS, dtype)[self.codes[rows]]
        if self.zeros is not None:
            values -= xp.repeat(self.zeros[rows].astype(dtype) - MIDDLE, group, axis=1)
        return values * xp.repeat(self.scales[rows].astype(dtype), group, axis=1)


def random_experts(device: BenchDevice, gemm: Gemm) -> list[Weights]:
    """Make the weights of all experts of the layer of `gemm`, which differ from expert to expert."""
    return [Weights.random(device, gemm, seed=_SEED + expert) for expert in range(gemm.layer.num_groups)]


class Operands:
    """A[M,K] and C[M,N] of the largest GEMM; smaller ones take their beginning.

    Args:
        device: where they lie.
        activation: their type.
        num_inputs, num_outputs: elements of the largest A and C.
    """

    def __init__(self, device: BenchDevice, activation: DType, num_inputs: int, num_outputs: int) -> None:
        self._device, self.activation = device, activation
        self._a = device.empty_bytes(_BYTES_PER_ELEM * num_inputs)
        self._c = device.empty_bytes(_BYTES_PER_ELEM * num_outputs)
        device.fill_normal(self._a, 1, is_bf16=activation is DType.BF16)

    def inputs(self, M: int, K: int) -> Any:
        """Return A: float16, or the bits of a bf16 in a uint16."""
        return self._typed(self._a, M, K)

    def output(self, M: int, N: int) -> Any:
        """Return C, in the type of A."""
        return self._typed(self._c, M, N)

    def _typed(self, buffer: Any, num_rows: int, num_columns: int) -> Any:
        dtype = np.float16 if self.activation is DType.FP16 else np.uint16
        used = buffer[: _BYTES_PER_ELEM * num_rows * num_columns]
        return used.view(dtype).reshape(num_rows, num_columns)

    def poison(self) -> None:
        """Fill C with NaN."""
        self._c.fill(_NAN_BYTE)

    def sample_error(self, experts: Sequence[Weights], offsets: Offsets, output: Any, dtype: str) -> float:
        """Return the relative error of an output in some columns of some rows of all experts that have any.

        Args:
            experts: the weights that A was multiplied with.
            offsets: the routing that ran.
            output: [rows, N] of 16-bit numbers on the GPU.
            dtype: "fp16" or "bf16", the type of the output.
        """
        total, xp = int(offsets[-1]), self._device.cupy
        rows, columns = _spread_out(total, _NUM_ROWS), _spread_out(experts[0].N, _NUM_COLUMNS)
        a = self.inputs(total, experts[0].K).view(np.uint16)
        bits = _to_host(output.view(np.uint16)[xp.asarray(rows)][:, xp.asarray(columns)])
        inputs = _to_host(a[xp.asarray(rows)])
        outputs = decode(np.ascontiguousarray(bits), dtype, bits.shape)
        exact_inputs = decode(inputs, str(self.activation), inputs.shape)
        expert_of_row = np.searchsorted(offsets, rows, side="right") - 1
        error = norm = 0.0
        for expert in np.unique(expert_of_row):
            mask = expert_of_row == expert
            reference = exact_inputs[mask] @ experts[int(expert)].columns(columns)
            error += float(np.square(outputs[mask] - reference).sum())
            norm += float(np.square(reference).sum())
        return float(np.sqrt(error / norm))


def _spread_out(size: int, count: int) -> npt.NDArray[np.int64]:
    """Return at most `count` indices below `size`, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, count).astype(np.int64))


def _to_host(array: Any) -> npt.NDArray[Any]:
    host: npt.NDArray[Any] = array.get() if hasattr(array, "get") else np.asarray(array)
    return host
