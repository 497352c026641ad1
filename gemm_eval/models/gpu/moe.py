"""Layers of experts on GPUs: kernels around the two grouped GEMMs, and which a library takes. See MODEL.md."""

from collections.abc import Mapping
from math import log2
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu.calibration import Origin, cached_by_arch, coefficients_for
from gemm_eval.models.gpu.correction_kernels import LAYER_FEATURES, answer_layers
from gemm_eval.models.gpu.learned import (
    NOTHING_LEARNED,
    Answers,
    Features,
    Learned,
    features_of,
    learned_for,
    learned_path,
)
from gemm_eval.models.gpu.libraries import engine_libraries, first_library, library_of
from gemm_eval.models.gpu.memory_bound import l2_and_dram_us, side_by_side
from gemm_eval.models.gpu.model import GPU_MODEL_VERSION
from gemm_eval.models.gpu.moe_tiles import triton_tile
from gemm_eval.units import bytes_per_us, us_at_peak
from gemm_eval.workload import LAYER_TERMS, GemmTypes, MoeWork

Floats = npt.NDArray[np.float64]

_NS_PER_US, _PS_PER_US = 1e3, 1e6
_ACTIVATION_BYTES = 2  # of tokens, and of what the GEMMs give: bf16 or fp16


def layer_terms(arch: GpuSpec, c: Mapping[str, float], work: MoeWork) -> dict[str, Any]:
    """Return the time of each of `LAYER_TERMS`, in microseconds; OPERATIONS.md, "Layers of experts".

    A step of which `c` has no share of a rate at which it moves bytes is part of a GEMM.
    """
    tokens_of, hidden, rows = (np.asarray(size, np.float64) for size in (work.num_tokens, work.hidden, work.local_rows))
    grouped = np.asarray(work.has_grouped_router, np.float64)
    routing = c["moe_fixed_us"] + tokens_of * (
        (c["moe_token_ns"] + grouped * c["moe_grouped_router_ns"]) / _NS_PER_US
        + np.asarray(work.num_experts, np.float64) * c["moe_token_expert_ps"] / _PS_PER_US
    )
    permute = (
        rows * c["moe_row_ns"]
        + np.asarray(work.num_local_experts, np.float64) * c["moe_expert_ns"]
        + np.asarray(work.num_active, np.float64) * c["moe_active_ns"]
    ) / _NS_PER_US
    token_bytes = tokens_of * hidden * _ACTIVATION_BYTES
    tokens = _moved_us(arch, c, 2.0 * token_bytes, "moe_token_frac")
    # what GEMM 1 gives, one or two columns for each of the activation, and what GEMM 2 reads
    activation_bytes = rows * np.asarray(work.inter, np.float64) * (2.0 + np.asarray(work.gated)) * _ACTIVATION_BYTES
    has_sum = np.asarray(work.topk) > 1  # else GEMM 2 writes the tokens
    finalize_bytes = has_sum * (rows * hidden * _ACTIVATION_BYTES + token_bytes)
    # CTAs that each expert has: half as many where experts are fewest, as timings by number of experts show
    few_ctas = np.where(np.asarray(work.num_local_experts) < _FEW_EXPERTS, 2.0, 1.0)
    most_rows = few_ctas * np.asarray(work.most_rows, np.float64)
    columns = np.ceil(np.asarray(work.inter, np.float64) / _COLUMNS_OF_CTA)
    any_ctas = tokens_of * np.asarray(work.topk, np.float64) * columns
    is_quantized = work.is_quantized
    times = (
        routing,
        permute + (0.0 if is_quantized else tokens),
        tokens if is_quantized else np.zeros_like(tokens),
        _moved_us(arch, c, activation_bytes, "moe_activation_frac")
        + most_rows * c["moe_most_row_ns"] / _NS_PER_US
        + any_ctas / (_CTAS_OF_SM * arch.num_sms) * c["moe_any_row_us"],
        _moved_us(arch, c, finalize_bytes, "moe_finalize_frac"),
    )
    return dict(zip(LAYER_TERMS, times, strict=True))


_FEW_EXPERTS = 4
_CTAS_OF_SM, _COLUMNS_OF_CTA = 16, 128  # of 128 threads
_HOLD_FRAC = 0.7  # of L2: in which what one kernel writes is still there when the next reads it; assumed


def _moved_us(arch: GpuSpec, c: Mapping[str, float], num_bytes: Floats, frac: str) -> Floats:
    """Return the time of bytes through L2, and through DRAM as far as L2 cannot hold them; 0 without such a step."""
    if frac not in c:
        return np.zeros_like(num_bytes)
    l2_us, dram_us = l2_and_dram_us(
        arch, num_bytes, num_bytes, hold_frac=_HOLD_FRAC, l2_frac=c[frac], dram_frac=c["moe_dram_frac"]
    )
    return side_by_side(l2_us, dram_us)


MOE = "moe"
"""Name of the subject, in files of what was learned of it."""


def layer_features(arch: GpuSpec, work: MoeWork, latency_us: Floats) -> Features:
    """Return the features that corrections read.

    Args:
        work: of layers [rows], float columns: means over draws of the routing.
        latency_us: [rows], by the terms, without shared experts.
    """
    columns = _answers(NOTHING_LEARNED, *_rates_log2(arch, work.types), work, latency_us, is_warm=True)[:, 4:]
    return features_of(LAYER_FEATURES, LAYER_FEATURES.index("local_rows"), columns)


def layer_answers(
    arch: GpuSpec, library: str, work: MoeWork, physics_us: Floats, *, is_on: bool, is_warm: bool
) -> tuple[Answers, Origin] | None:
    """Return what was learned of layers [rows] by a library's kernels, and the origin of these; None: nothing.

    A corrected time stays above the data sheet's: of the products, and of the weights, where L2 is not warm.

    Args:
        library: whose kernels; what was learned is not of tiles that a user names.
        work, physics_us: as for `layer_features`.
        is_on: False: intervals of the terms alone.
        is_warm: state of L2.
    """
    learned, origin, rates = _learned(arch, library, work.types, is_on)
    if learned is None:
        return None
    return Answers(*_answers(learned, *rates, work, physics_us, is_warm=is_warm).T[:3]), origin


def _answers(
    learned: Learned, compute_log2: float, weight_log2: float, work: MoeWork, physics_us: Floats, *, is_warm: bool
) -> Floats:
    """Return what was learned of layers, as `answer_layers` writes it."""
    out = np.empty((len(physics_us), len(LAYER_FEATURES) + 5))
    answer_layers(
        work[:10], compute_log2, weight_log2, is_warm, np.ascontiguousarray(physics_us), *learned.trees,
        learned.spreads, learned.physics_spreads, out,
    )  # fmt: skip
    return out


def _rates_log2(arch: GpuSpec, types: GemmTypes) -> tuple[float, float]:
    """Return log2 of us at the data sheet's rates: of a product of a row, and of reading a weight."""
    compute_us = us_at_peak(2.0, arch.peak_tflop_per_s(types.a.dtype))
    return log2(compute_us), log2(types.b.dtype.bits / 8.0 / bytes_per_us(arch.dram_gb_per_s))


@cached_by_arch
def _learned(
    arch: GpuSpec, library: str, types: GemmTypes, is_on: bool
) -> tuple[Learned | None, Origin, tuple[float, float]]:
    """Return what was learned of the family that a library runs types with (None: nothing), its origin, and rates."""
    try:
        family = library_of(library.partition("/")[0]).family(arch, types)
    except UnsupportedError:
        return None, Origin(False, None, ""), (0.0, 0.0)
    coefficients, origin = coefficients_for(arch, library, family)
    rates = _rates_log2(arch, types)
    if "/" in library or origin.gpu is None or not learned_path(origin.gpu, MOE, family).is_file():
        return None, origin, rates
    of = learned_for(arch, MOE, family, origin, coefficients, GPU_MODEL_VERSION, LAYER_FEATURES, is_on=is_on)
    return of, origin, rates


_CK_STEP_BYTES = 256
_MARLIN_ROWS, _MARLIN_FILLED, _MARLIN_FEW_ROWS = (8, 16, 32, 48, 64), 0.9, 16
_MXFP4_FEW_ROWS = 4  # of an expert in the mean, up to which Triton's kernels for mxfp4 take tiles of 16 rows
_GEN = "trtllm-gen"
_GEN_LEAST_ROWS = 8


class LayerShape(NamedTuple):
    """A layer as a rank's kernels see it: numbers of tokens of the layer, experts of the rank, and its columns."""

    num_tokens: int
    hidden: int
    inter: int
    num_local_experts: int
    topk: int
    gated: int = 2


def default_layer_library(arch: GpuSpec, types: GemmTypes) -> str | None:
    """Return whose kernels serving engines run a layer of experts with; None: none that is known for these types."""
    return first_library(engine_libraries(arch, types), arch, types)


def layer_libraries(
    arch: GpuSpec, library: str, types: GemmTypes, shape: LayerShape, *, release: str = "0.5.14"
) -> tuple[str, str]:
    """Return the library of each GEMM of a layer, with the tile that its rule takes: ``triton/64x64x32w4s3``.

    Args:
        library: whose kernels, without a tile; those that try all their tiles, or weigh them by a model, come back so.
        release: of SGLang, whose tables and rules Triton's kernels run by.

    Raises:
        UnsupportedError: Triton's kernels do not take such types.
    """
    if library == "triton" and types.is_weight_quantized:
        # timings of SGLang 0.5.14, all of 32 experts, step above 4 rows of an expert, and then at every 128
        rows = 16 if shape.num_tokens * shape.topk <= _MXFP4_FEW_ROWS * shape.num_local_experts else 128
        return f"triton/{rows}x128", f"triton/{rows}x128"
    if library == "triton":
        tile = triton_tile(arch, shape.num_local_experts, shape.inter, types, shape.num_tokens, release=release)
        size = f"{tile.block_m}x{tile.block_n}x{tile.block_k}"
        return (f"triton/{size}w{tile.num_warps}s{max(2, tile.num_stages)}",) * 2
    if library == _GEN:
        # FlashInfer 0.6: a power of two above the mean rows of an expert of the rank, as if all tokens were its own
        mean = -(-shape.num_tokens * shape.topk // shape.num_local_experts)
        rows = min(max(1 << (mean - 1).bit_length(), _GEN_LEAST_ROWS), _gen_most_rows(types))
        return f"{_GEN}/{rows}x128", f"{_GEN}/{rows}x128"
    if library == "marlin":
        # SGLang 0.5.10, fused_marlin_moe.py: the smallest of which experts fill nine tenths in the mean
        per_expert = shape.num_tokens * shape.topk / shape.num_local_experts
        rows = next((num for num in _MARLIN_ROWS if per_expert / num < _MARLIN_FILLED), _MARLIN_ROWS[-1])
        first = _marlin(rows, shape.hidden, shape.gated * shape.inter)
        return first, _marlin(rows, shape.inter, shape.hidden)
    is_odd = shape.inter * types.a.dtype.bits // 8 % _CK_STEP_BYTES == _CK_STEP_BYTES // 2
    if library == "aiter-moe" and is_odd and types.a.dtype is types.b.dtype and not types.is_block_scaled:
        return library, f"{library}/128x128"  # CK's other tiles have k-steps of 256 bytes, and run only whole ones
    return library, library


def _gen_most_rows(types: GemmTypes) -> int:
    """Return a tile of FlashInfer's ladder for these types."""
    if types.is_weight_quantized:
        return 64
    return 256 if types.a.dtype is DType.FP4 else 128


def _marlin(rows: int, K: int, N: int) -> str:
    """Return the first of the tiles that divides the problem."""
    if rows <= _MARLIN_FEW_ROWS:
        wide = K % 128 == 0 and N % 128 == 0
        return f"marlin/{rows}x128x{128 if wide else 64}"
    return f"marlin/{rows}x{256 if N % 256 == 0 else 128}x64"


def say_tiles(library: str, types: GemmTypes) -> str:
    """Return which release's rule chooses the tiles of a library; empty: those that this model finds best."""
    if library == "triton" and types.is_weight_quantized:
        return "tiles are those that timings of SGLang 0.5.14 show, all of 32 experts"
    if library == "marlin":
        own = "" if types.b.dtype is DType.INT4 else ", whose timings are of int4 weights"
        return f"tiles are those of SGLang 0.5.10{own}"
    return {"triton": "tiles are those of SGLang 0.5.14", _GEN: "tiles are those of FlashInfer 0.6"}.get(library, "")


def padded_sizes(library: str, types: GemmTypes, hidden: int, inter: int) -> tuple[int, int]:
    """Return the width of tokens, and the columns of gate or up, that a library computes on a rank.

    Weights are padded once, when they are loaded. For mxfp4 (SGLang 0.5.14 and vLLM, layers/quantization/mxfp4.py)
    TensorRT-LLM-gen's kernels have both in units of 256, Marlin's 256 and 128, and Triton's whole blocks of scales;
    otherwise TensorRT-LLM-gen's have columns in units of the 128 rows of their instruction.
    """
    is_fp4_weights = types.is_weight_quantized and types.b.dtype is DType.FP4
    units = _FP4_UNITS.get(library) if is_fp4_weights else (1, 128) if library == _GEN else None
    return (hidden, inter) if units is None else (-(-hidden // units[0]) * units[0], -(-inter // units[1]) * units[1])


_FP4_UNITS = {_GEN: (256, 256), "marlin": (256, 128), "triton": (1, 32)}  # elements of a row of tokens, of columns
