"""What a comparison of grouped GEMMs runs: layers of experts, tokens that are routed at random, and the operands."""

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
from gemm_eval.measure.engines.operands import Operands, Weights
from gemm_eval.measure.runners.checks import MAX_ERRORS
from gemm_eval.moe import uniform_counts
from gemm_eval.words import shown

__all__ = ["DEFAULT_TOKENS", "EXPERT_LAYERS", "ExpertGrid", "ExpertLayer", "ExpertWeights", "GroupedGemm"]

DEFAULT_TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
"""Tokens of all GPUs together."""

_ROUTINGS = 8
_SEED = 20_261_123
_MOST_ROWS_CHECKED = 16


class ExpertLayer(NamedTuple):
    """One GEMM of a layer of experts, as a GPU has it.

    Attributes:
        name: for options and tables.
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

    def expected_rows(self, tokens: int) -> int:
        """Return the rows that this GPU has in the mean, rounded up: what a caller knows before the routing."""
        return -(-tokens * self.topk * self.num_groups // self.num_experts)


# hidden_size, moe_intermediate_size, routed experts and experts of a token as in each model's config.json
EXPERT_LAYERS = (
    ExpertLayer("mixtral-8x7b-up", 8, 8, 2, 28672, 4096),
    ExpertLayer("mixtral-8x7b-down", 8, 8, 2, 4096, 14336),
    ExpertLayer("qwen3-30b-a3b-up", 128, 128, 8, 1536, 2048),
    ExpertLayer("qwen3-30b-a3b-down", 128, 128, 8, 2048, 768),
    ExpertLayer("deepseek-v3-ep8-up", 32, 256, 8, 4096, 7168),
    ExpertLayer("deepseek-v3-ep8-down", 32, 256, 8, 7168, 2048),
)
"""Both GEMMs of three models; DeepSeek-V3 on 8 GPUs that have 32 experts each."""


@dataclass(frozen=True)
class GroupedGemm:
    """A layer with tokens: rows of A in the order of their experts, for several routings.

    Attributes:
        layer: what is multiplied with.
        tokens: of all GPUs.
        group_size, activation: as of `DenseGemm`.
    """

    layer: ExpertLayer
    tokens: int
    group_size: int
    activation: DType

    @cached_property
    def routings(self) -> list[npt.NDArray[np.int32]]:
        """Where the rows of each expert begin, and the end of the last, [num_groups + 1] each; no routing is empty."""
        layer = self.layer
        rng = np.random.default_rng([_SEED, self.tokens, *layer[1:]])
        found: list[npt.NDArray[np.int32]] = []
        while len(found) < _ROUTINGS:
            counts = uniform_counts(self.tokens, layer.num_experts, layer.topk, rng)[: layer.num_groups]
            if counts.any():
                found.append(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
        return found

    @property
    def rows(self) -> int:
        """Rows that A has room for: those of the largest routing."""
        return max(int(offsets[-1]) for offsets in self.routings)

    @property
    def expected_rows(self) -> int:
        """What is told to engines that choose a kernel by the number of rows."""
        return min(self.rows, self.layer.expected_rows(self.tokens))


@dataclass(frozen=True)
class ExpertGrid:
    """Which grouped GEMMs are compared: every number of tokens on every layer.

    Attributes:
        layers: of experts.
        tokens: of all GPUs.
        group_size, dtype: as of `Grid`.

    Raises:
        InvalidOptionError: a value that cannot be.
    """

    layers: Sequence[ExpertLayer] = EXPERT_LAYERS
    tokens: Sequence[int] = DEFAULT_TOKENS
    group_size: int = 128
    dtype: str = "fp16"

    @classmethod
    def of_names(cls, names: Sequence[str], **options: Any) -> ExpertGrid:
        """Return the grid of the layers with these names; none: all."""
        known = {layer.name: layer for layer in EXPERT_LAYERS}
        if unknown := [name for name in names if name not in known]:
            raise InvalidOptionError(f"--layer must be one of {', '.join(known)}, got {shown(unknown[0])}")
        return cls(tuple(known[name] for name in names) or EXPERT_LAYERS, **options)

    def __post_init__(self) -> None:
        if self.dtype not in MAX_ERRORS:
            raise InvalidOptionError(f"--activation must be one of {', '.join(MAX_ERRORS)}, got {shown(self.dtype)}")
        if self.group_size not in (32, 64, 128):
            raise InvalidOptionError(f"--group-size must be 32, 64 or 128, got {self.group_size}")
        if not self.tokens or min(self.tokens) < 1:
            raise InvalidOptionError(f"--rows must be integers >= 1, got {', '.join(map(str, self.tokens)) or 'none'}")

    def gemms(self, layer: ExpertLayer) -> list[GroupedGemm]:
        """Return the GEMMs of a layer, by tokens."""
        return [GroupedGemm(layer, tokens, self.group_size, DType(self.dtype)) for tokens in sorted(set(self.tokens))]


@dataclass(frozen=True)
class ExpertWeights:
    """The weights of all experts of a layer.

    Attributes:
        layer: which.
        experts: of each.
    """

    layer: ExpertLayer
    experts: Sequence[Weights]

    @classmethod
    def random(cls, device: BenchDevice, layer: ExpertLayer, group_size: int, activation: DType) -> ExpertWeights:
        """Make weights that differ from expert to expert."""
        return cls(
            layer,
            [
                Weights.random(device, layer.N, layer.K, group_size, activation, seed=_SEED + expert)
                for expert in range(layer.num_groups)
            ],
        )

    def sample_error(self, operands: Operands, offsets: npt.NDArray[np.int32], output: Any, dtype: str) -> float:
        """Return the relative error of an output [rows, N] in some rows of all experts that have any.

        Args:
            operands: A, of the rows that `output` has.
            offsets: of the routing that ran.
            output: on the GPU.
            dtype: "fp16" or "bf16", in which it is.
        """
        total, layer = int(offsets[-1]), self.layer
        rows = np.unique(np.linspace(0, total - 1, _MOST_ROWS_CHECKED).astype(np.int64))
        squares = reference = 0.0
        of_row = np.searchsorted(offsets, rows, side="right") - 1
        for expert in np.unique(of_row):
            some = rows[of_row == expert]
            a = operands.inputs(total, layer.K)
            squared, norm = operands.squared_error(a, some, self.experts[int(expert)], output, dtype)
            squares, reference = squares + squared, reference + norm
        return float(np.sqrt(squares / reference))
