"""The Hopper family for tokens in e4m3: 4-bit integers become e4m3 in registers, scales of groups meet fp32 sums."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gemm_eval.arch import DeviceLimits
from gemm_eval.dtypes import DType
from gemm_eval.kernels.families.base import Launch, Operands, Sizes, TensorMapOf, Variant, WeightMode, ceil_div
from gemm_eval.kernels.families.sm90 import Sm90Family, wgmma_text
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule

TOKEN_K = 128
"""Quantized tokens are padded along K to a multiple of this: a step of the main loop, and a group of weights."""

_TOKENS = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, *range(144, 257, 16))
_SHARES = {(2, 1): 256, (2, 2): 144, (3, 1): 88}
"""Most tokens of a tile by computing warpgroups and blocks of 64 columns of each: their registers hold no more sums."""
_MAX_SUMS = 64  # of a thread, of one group
_CLUSTER_TOKENS = 64  # fewer are not worth sharing
_MAX_SMEM, _MAX_STAGES = 227 * 1024, 12
_BARRIER_BYTES = 16  # of a stage
_COLUMNS, _WEIGHT_BYTES = 64, 4096  # of a block of 64 columns x 128 k
_TOKENS_OF_WORD = 2  # tensor maps take two e4m3 numbers for one of 16 bits


class Sm90Fp8Family(Sm90Family):
    """wgmma kernels for e4m3 tokens. `cta_m` is a tile of tokens, 8..256; `cta_n` of columns; a stage holds 128 k.

    The sums of a group of K have registers of their own, so that of more than 128 tokens a half follows the other.
    Modes COLUMN and GROUP alone: weights of others are no integers -8..7.
    """

    name = "w4a8_sm90"
    source = "sm90_fp8.cu"
    entry = "w4a8_sm90"

    def configs(self) -> Iterator[KernelConfig]:
        for (consumers, blocks), most in _SHARES.items():
            for cta_m in (n for n in _TOKENS if n <= most):
                for cluster_n in (1, 2) if cta_m >= _CLUSTER_TOKENS else (1,):
                    config = KernelConfig(
                        self.name, cta_m, _COLUMNS * consumers * blocks, TOKEN_K, 1, cluster_n, 4 * consumers, 0,
                        Schedule.COOPERATIVE, Decomposition.DATA_PARALLEL, 1, RasterOrder.ALONG_M, 8,
                    )  # fmt: skip
                    # the deepest ring for the scales of any mode: a config is the same kernel whatever the mode
                    room = _MAX_SMEM - self._fixed_bytes(config)
                    yield config._replace(num_stages=min(room // _stage_bytes(config, 32), _MAX_STAGES))

    def refusal(self, variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
        if variant.mode not in {WeightMode.COLUMN, WeightMode.GROUP}:
            return f"weights of mode {variant.mode.name.lower()} are no integers -8..7, which e4m3 holds"
        return super().refusal(variant, sizes, limits)

    def macros(self, variant: Variant) -> dict[str, int]:
        return super().macros(variant) | {"TOKEN_PARTS": _token_parts(variant.config)}

    def prelude(self, variant: Variant) -> str:
        tokens = variant.config.cta_m // _token_parts(variant.config)
        kinds = {
            "": (f"m64n{tokens}k32.f32.e4m3.e4m3", "1, 1"),
            "_halves": (f'm64n{tokens}k16.f32." MMA_TYPE "." MMA_TYPE "', "1, 1, 0"),
        }
        return "".join(
            wgmma_text(f"wgmma{kind}{first}", types, tokens // 2, f"{int(not first)}, {flags}")
            for kind, (types, flags) in kinds.items() for first in ("", "_first")
        )  # fmt: skip

    def smem_bytes(self, variant: Variant) -> int:
        config = variant.config
        return self._fixed_bytes(config) + config.num_stages * _stage_bytes(config, variant.group_size)

    def _ctas_per_sm(self, variant: Variant) -> int:  # noqa: ARG002
        return 1

    def arguments(
        self, variant: Variant, sizes: Sizes, launch: Launch, operands: Operands, tensor_map: TensorMapOf
    ) -> tuple[Any, ...]:
        """See `Family`: `a` are tokens of `lda` bytes as `quantize_tokens` leaves them, their scales behind them."""
        words = operands.lda // _TOKENS_OF_WORD
        of_words = operands._replace(lda=words)
        _, map_c, *rest = super().arguments(variant, sizes, launch, of_words, tensor_map)
        box = min(variant.config.cta_m // variant.config.cluster_n, sizes.M), TOKEN_K // _TOKENS_OF_WORD
        map_a = tensor_map(operands.a, DType.FP16, (sizes.M, words), words, box)
        corrections, row = operands.a + sizes.M * operands.lda, correction_bytes(sizes.K)
        words = row // _TOKENS_OF_WORD
        map_corrections = tensor_map(corrections, DType.FP16, (sizes.M, words), words, box)
        return (map_a, map_corrections, map_c, np.uint64(corrections + sizes.M * row), *rest)


def correction_bytes(K: int) -> int:
    """Return the bytes of a token's corrections: of each 32 times 128 k 32 numbers of 16 bits, and their rests."""
    return ceil_div(K, 32 * TOKEN_K) * 128


def _token_parts(config: KernelConfig) -> int:
    """Return into how many parts the tokens of a tile are cut for wgmma."""
    return 2 if config.cta_m > 2 * _MAX_SUMS else 1


def _stage_bytes(config: KernelConfig, group_size: int) -> int:
    groups = TOKEN_K // group_size if group_size else 0
    of_columns = _WEIGHT_BYTES + groups * _COLUMNS * WeightMode.GROUP.param_bytes
    return config.cta_m * TOKEN_K + config.cta_n // _COLUMNS * of_columns + _BARRIER_BYTES
