"""Operands that engines share: activations, an output, and 4-bit weights that each packs in its own way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.device import BenchDevice
from gemm_eval.dtypes import DType
from gemm_eval.kernels import MIDDLE, WeightMode, encode
from gemm_eval.measure.runners.checks import decode

__all__ = ["DenseGemm", "Operands", "Weights"]

_PATTERN_ELEMS = (1 << 24) - 3  # odd: rows of a matrix start at different places of it
# Scales of 8 significant bits, which fp16 and bf16 hold; products of normal activations stay far from the largest fp16.
_SCALE_STEP, _LEAST_STEPS, _MOST_STEPS = 2.0**-14, 128, 256
_CHUNK_ELEMS = 1 << 26
_NUM_ROWS, _NUM_COLUMNS = 16, 64
_NAN_BYTE = 0xFF  # of an fp16 and of a bf16
_BYTES_PER_ELEM = 2


@dataclass(frozen=True)
class DenseGemm:
    """C[M,N] = A[M,K] x W[N,K]^T with 4-bit weights.

    Attributes:
        M, K, N: sizes, in elements.
        group_size: weights along K that share a scale.
        activation: type of A, C and the scales.
    """

    M: int
    K: int
    N: int
    group_size: int
    activation: DType

    @property
    def mode(self) -> WeightMode:
        """What is stored beside the 4 bits: a scale for each group, no zero points."""
        return WeightMode.GROUP


@dataclass(frozen=True)
class Weights:
    """One matrix of weights on the GPU: W[n, k] = scales[n, k // group_size] * (integers[n, k] - 8).

    Attributes:
        N, K: columns of C, and reduction length.
        integers: uint8 [N, K], all of 0..15 equally likely.
        scales: float32 [N, K / group_size], each a value of the type of the activations.
        group_size: weights along K that share a scale.
        activation: type of the activations and of the stored scales.
        xp: the library of the arrays.
    """

    N: int
    K: int
    integers: Any
    scales: Any
    group_size: int
    activation: DType
    xp: Any

    @classmethod
    def random(cls, device: BenchDevice, N: int, K: int, group_size: int, activation: DType, seed: int = 2) -> Weights:
        """Make weights of that size; `group_size` divides K."""
        rng, xp = np.random.default_rng(seed), device.cupy
        pattern = xp.asarray(rng.integers(0, 16, min(_PATTERN_ELEMS, N * K), dtype=np.uint8))
        integers = xp.empty(N * K, np.uint8)
        for start in range(0, N * K, pattern.size):
            part = integers[start : start + pattern.size]
            part[...] = pattern[: part.size]
        steps = rng.integers(_LEAST_STEPS, _MOST_STEPS, (N, K // group_size))
        scales = xp.asarray((steps * _SCALE_STEP).astype(np.float32))
        return cls(N, K, integers.reshape(N, K), scales, group_size, activation, xp)

    def stored_scales(self) -> Any:
        """Scales as they are stored: float16 [N, G], or the bits of a bf16 in a uint16."""
        return encode(self.scales, self.activation)

    def dense(self) -> Any:
        """Return W[N, K] in the type of the activations, rounded: float16, or the bits of a bf16 in a uint16."""
        parts = [
            encode((self.integers[rows].astype(np.float32) - MIDDLE) * self._spread(self.scales[rows]), self.activation)
            for rows in self.chunks()
        ]
        return self.xp.concatenate(parts)

    def chunks(self) -> list[slice]:
        """Return rows [N] in parts small enough for wide intermediate values."""
        step = max(1, _CHUNK_ELEMS // self.K)
        return [slice(start, start + step) for start in range(0, self.N, step)]

    def columns(self, which: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return some columns of W^T, [K, len(which)], exactly, on the CPU."""
        places = self.xp.asarray(which)
        integers, scales = (_to_host(part[places]).astype(np.float64) for part in (self.integers, self.scales))
        exact: npt.NDArray[np.float64] = ((integers - MIDDLE) * np.repeat(scales, self.group_size, axis=1)).T
        return exact

    def _spread(self, scales: Any) -> Any:
        return self.xp.repeat(scales, self.group_size, axis=1)


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

    def sample_error(self, M: int, weights: Weights, output: Any, dtype: str) -> float:
        """Return the relative error of an output [M, N] of 16-bit numbers in some of its rows and columns.

        Args:
            M: its rows.
            weights: what A was multiplied with.
            output: on the GPU.
            dtype: "fp16" or "bf16", in which it is.
        """
        rows = _spread_out(M, _NUM_ROWS)
        squared, norm = self.squared_error(self.inputs(M, weights.K), rows, weights, output, dtype)
        return math.sqrt(squared / norm)

    def squared_error(
        self, inputs: Any, rows: npt.NDArray[np.int64], weights: Weights, output: Any, dtype: str
    ) -> tuple[float, float]:
        """Return the square of the error of some rows of an output in some columns, and that of what they should be.

        Args:
            inputs: A, [M, K].
            rows: which.
            weights: what these rows were multiplied with.
            output: [M, N], on the GPU.
            dtype: "fp16" or "bf16", in which it is.
        """
        columns, xp = _spread_out(weights.N, _NUM_COLUMNS), self._device.cupy
        bits = output.view(np.uint16)[xp.asarray(rows)][:, xp.asarray(columns)]
        chosen = _to_host(inputs.view(np.uint16)[xp.asarray(rows)])
        found = decode(np.ascontiguousarray(_to_host(bits)), dtype, bits.shape)
        reference = decode(chosen, str(self.activation), chosen.shape) @ weights.columns(columns)
        return float(np.square(found - reference).sum()), float(np.square(reference).sum())


def _spread_out(size: int, count: int) -> npt.NDArray[np.int64]:
    """At most `count` places among `size`, the first and the last with them."""
    return np.unique(np.linspace(0, size - 1, count).astype(np.int64))


def _to_host(array: Any) -> npt.NDArray[Any]:
    host: npt.NDArray[Any] = array.get() if hasattr(array, "get") else np.asarray(array)
    return host
