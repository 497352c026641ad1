"""Kernels of linear attention and of sparse attention on GPUs: one formula, coefficients by library and kernel.

OPERATIONS.md, "Linear and sparse attention".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gemm_eval.arch import GpuSpec, data_root
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu import calibration as calibrations
from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, SPEC, Coefficient
from gemm_eval.models.gpu.learned import OTHER_GENERATION, OTHER_MAKER
from gemm_eval.models.gpu.memory_bound import in_turns, l2_and_dram_us, side_by_side
from gemm_eval.units import FLOP_PER_MAC, us_at_peak
from gemm_eval.workload import MIXER_KERNELS, MixerProblem

Floats = npt.NDArray[np.float64]

MIXERS = "mixers"
"""Name of the subject, in files and commands."""

MIXER_MODEL_VERSION = "mixers-1"

MIXER_LIBRARIES = ("vllm", "sglang", "trtllm")
"""Whose kernels were timed, in the order in which they are tried where no library is asked for."""

_item = partial(Coefficient, source="round, within what fits of timings of H200 and B200 gave")

MIXER_COEFFICIENTS = (
    _item("start_us", "us", 0.0, 80.0, 5.0, FREE, "start and end of the operation's kernels"),
    _item("fill_us", "us", 0.0, 40.0, 5.0, FREE, "a first chunk of 64 tokens beyond that of none"),
    _item("line_us", "us", 0.0, 80.0, 6.0, FREE, "a line besides its chunks: its state is loaded and stored"),
    _item("chunk_us", "us", 0.0, 16.0, 2.5, FREE, "a chunk of a line, which waits for the chunk before it"),
    _item("lines_per_sm", "1", 0.1, 16.0, 1.0, NO_LIMIT, "lines that an SM works on at once"),
    _item("passes", "1", 1.0, 16.0, 3.0, SPEC, "times that bytes of tokens are moved between the kernels"),
    _item("l2_frac", "1", 0.05, 1.0, 0.5, NO_LIMIT, "share of the L2 bandwidth"),
    _item("dram_frac", "1", 0.05, 1.2, 0.7, SPEC, "share of the DRAM bandwidth"),
    _item("hold_frac", "1", 0.02, 4.0, 0.5, SPEC, "share of L2 in which bytes of the call before are still there"),
)
"""All of them, in the order of files; a kernel whose time does not depend on one has no such line."""

MIXER_DEFAULTS = {item.name: item.default for item in MIXER_COEFFICIENTS}

MIXER_TERMS = {
    "fixed_us": "start and end of the kernels, and the first chunk",
    "lines_us": "lines of chunks, one chunk after the other: states of heads, blocks of queries",
    "bytes_us": "bytes through L2, and through DRAM where L2 does not hold them; less what lines hide",
}
"""Terms of the time; they add up to it."""

CHUNK_TOKENS = 64
"""Tokens of a chunk of a scan: flash-linear-attention and FlashInfer divide sequences so."""

SSD_CHUNK_TOKENS = 256
"""Tokens of a chunk of Mamba2's scan, as most configs have it (`mamba_chunk_size`)."""

_CONV_CHUNK_TOKENS = 1024  # 128 threads of 16 bytes: causal_conv1d_fwd, whose CTAs take a channel each
_ASSUMED_SPREAD = 0.5  # in log, to both ends of the interval of a kernel whose coefficients are assumed
_SCORE_KEYS = 256  # of a block of index scores in DeepGEMM
_SCORE_ROWS = 128  # queries times heads in such a block
_TOP_K_KEYS = 1024  # that the threads of a CTA read at once
_HEAD_BLOCKS = {"sm_90": 64}  # query heads of a CTA of FlashMLA's sparse kernel; others: of a pair of CTAs
_WIDE_HEAD_BLOCK = 128
_ACTIVATION_BYTES, _LOGIT_BYTES, _FP32_BYTES = 2, 4, 4
_CONV_CHANNELS = 256  # of a CTA


class MixerRows(NamedTuple):
    """Problems, as columns [rows]."""

    lines: Floats  # that work goes along, each by one CTA; 0: the bytes decide alone
    chunks: Floats  # of a line, one after the other
    first: Floats  # share of the first chunk that is filled
    once_bytes: Floats  # moved once: states, scores
    token_bytes: Floats  # of tokens, moved once or several times

    def take(self, mask: Any) -> MixerRows:
        """Return some of the problems."""
        return MixerRows(*(column[mask] for column in self))


def mixer_rows(arch: GpuSpec, problems: Sequence[MixerProblem]) -> MixerRows:
    """Return problems as the model takes them; they may be of several kernels."""
    head_block = _HEAD_BLOCKS.get(arch.sm_arch, _WIDE_HEAD_BLOCK)
    sm_tflop_per_s = arch.peak_tflop_per_s(DType.BF16) / arch.num_sms
    rows = [_row(problem, head_block, sm_tflop_per_s) for problem in problems]
    return MixerRows(*np.array(rows, np.float64).reshape(-1, 5).T.copy())


def _row(p: MixerProblem, head_block: int, sm_tflop_per_s: float) -> tuple[float, float, float, float, float]:
    first = min(p.q_len, CHUNK_TOKENS) / CHUNK_TOKENS
    part, num_tokens = MIXER_KERNELS[p.kernel].part, p.batch * p.q_len
    keys = p.num_keys - (p.q_len - 1) / 2  # that a query attends to in the mean
    if part == "conv":
        return 0.0, 0.0, first, 0.0, num_tokens * 2.0 * p.channels * _ACTIVATION_BYTES
    if part == "conv_channels":
        of_channels = num_tokens * 2.0 * p.channels * _ACTIVATION_BYTES
        return p.batch * p.channels, math.ceil(p.q_len / _CONV_CHUNK_TOKENS), first, 0.0, of_channels
    if part == "ssd":
        return _ssd_row(p, sm_tflop_per_s)
    if part == "conv_update":
        values = 2 + 2 * (p.conv_width - 1)  # input, output, and the state read and written
        return p.batch * math.ceil(p.channels / _CONV_CHANNELS), 0.0, 0.0, p.channels * p.batch * 2.0 * values, 0.0
    if part in ("scan", "update"):
        lines, of_token = p.batch * p.num_heads, 2 * (p.key_dim + p.value_dim) * _ACTIVATION_BYTES
        states = 2.0 * p.state_bytes
        if part == "update":
            return lines, 0.0, 0.0, states + lines * of_token, 0.0
        chunks = math.ceil(p.q_len / CHUNK_TOKENS)
        states += 2.0 * lines * chunks * p.key_dim * p.value_dim * _ACTIVATION_BYTES  # between the kernels
        return lines, chunks, first, states, float(num_tokens * p.num_heads * of_token)
    if part == "scores":
        blocks = p.batch * math.ceil(p.q_len / max(1, _SCORE_ROWS // p.num_heads))
        of_keys = p.batch * p.num_keys * (p.key_dim + _FP32_BYTES)
        return blocks, keys / _SCORE_KEYS, 0.0, num_tokens * keys * _LOGIT_BYTES + of_keys, 0.0
    if part == "scores_paged":
        of_keys = p.batch * p.num_keys * (p.key_dim + _FP32_BYTES + _LOGIT_BYTES)
        blocks_of_rows = p.num_heads * p.q_len / _SCORE_ROWS
        return p.batch * p.num_keys / _SCORE_KEYS * blocks_of_rows, 0.0, 0.0, float(of_keys), 0.0
    if part == "top_k":  # queries with fewer keys than are chosen have nothing to do
        queries = max(0, min(p.q_len, p.num_keys - p.value_dim))
        keys = p.num_keys - max(0, queries - 1) / 2
        return p.batch * queries, keys / _TOP_K_KEYS, 0.0, p.batch * queries * keys * _LOGIT_BYTES, 0.0
    width = p.num_heads * (p.key_dim + p.value_dim) * _ACTIVATION_BYTES
    return num_tokens * math.ceil(p.num_heads / head_block), 0.0, 0.0, float(num_tokens * width), 0.0


def _ssd_row(p: MixerProblem, sm_tflop_per_s: float) -> tuple[float, float, float, float, float]:
    """Return the work of Mamba2's scan: a line for each chunk of a head, as long as its arithmetic takes at the peak.

    Within a chunk scores of tokens (by group) and their sum over values; between chunks a state written, read and
    passed on, in fp32 (state-spaces/mamba, ssd_combined.py: chunk_state, state_passing, chunk_scan).
    """
    chunks, tokens = math.ceil(p.q_len / SSD_CHUNK_TOKENS), min(p.q_len, SSD_CHUNK_TOKENS)
    lines, state = p.batch * p.num_heads * chunks, p.key_dim * p.value_dim
    macs = tokens * (tokens * (p.value_dim + p.key_dim * p.key_heads / p.num_heads) + 2 * state)
    of_token = 2 * (p.num_heads * p.value_dim + p.key_heads * p.key_dim) * _ACTIVATION_BYTES
    states = 2.0 * p.state_bytes + 4.0 * lines * state * _FP32_BYTES
    return lines, us_at_peak(FLOP_PER_MAC * macs, sm_tflop_per_s), 0.0, states, float(p.batch * p.q_len * of_token)


def mixer_terms(arch: GpuSpec, c: Mapping[str, float], rows: MixerRows) -> dict[str, Floats]:
    """Return the time of each of `MIXER_TERMS`, [rows], in microseconds."""
    waves = np.maximum(1.0, rows.lines / (arch.num_sms * c["lines_per_sm"]))
    lines_us = np.where(rows.lines > 0, waves * (c["line_us"] + rows.chunks * c["chunk_us"]), 0.0)
    num_bytes = rows.once_bytes + c["passes"] * rows.token_bytes
    fracs = {name: c[name] for name in ("hold_frac", "l2_frac", "dram_frac")}
    bytes_us = in_turns(*l2_and_dram_us(arch, num_bytes, num_bytes, **fracs))
    main_us = side_by_side(lines_us, bytes_us)
    return {
        "fixed_us": arch.graph_node_us + c["start_us"] + c["fill_us"] * rows.first,
        "lines_us": lines_us,
        "bytes_us": main_us - lines_us,
    }


def mixer_us(arch: GpuSpec, c: Mapping[str, float], rows: MixerRows) -> Floats:
    """Return the times of problems of one kernel, [rows], in microseconds; arguments as of `mixer_terms`."""
    latency_us: Floats = np.sum(list(mixer_terms(arch, c, rows).values()), axis=0)
    return latency_us


class FittedMixer(calibrations.FittedKernel):
    """The coefficients of a kernel, and how well they hold."""

    p80_frac: float = Field(ge=0, description="80% of held-out errors are within this")


class MixerCalibration(calibrations.KernelsCalibration):
    """Coefficients of a library's kernels, as `gemm-eval calibrate mixers` writes them."""

    command = "gemm-eval calibrate mixers"
    subject = MIXERS
    kernels: ClassVar = {name: (kernel.meaning, MIXER_COEFFICIENTS) for name, kernel in MIXER_KERNELS.items()}
    families: Mapping[str, FittedMixer]


def mixer_calibration_path(gpu: str, library: str) -> Path:
    """Return where the calibration of a library's kernels on a GPU lies, if there is one."""
    return data_root() / "calibration" / gpu / f"{MIXERS}-{library}.yaml"


class MixerModel(NamedTuple):
    """The coefficients of a kernel on a GPU, where they come from, and the ends of its 80% interval as factors."""

    coefficients: Mapping[str, float]
    library: str
    origin: calibrations.Origin
    ends: tuple[float, float]


_ASSUMED = {
    "mamba2_scan": {"start_us": 12.0, "fill_us": 0.0, "line_us": 0.0, "chunk_us": 8.5, "passes": 1.5},
    "mamba2_update": {"start_us": 2.0, "fill_us": 0.0, "line_us": 0.0, "l2_frac": 1.0, "dram_frac": 1.0},
}
"""Coefficients of kernels that nothing here was timed of, rounded to what is published.

A scan's `chunk_us` is the time of its arithmetic over that at the peak: 79 to 93 ns a token on an H100, 4,096 to
262,144 tokens of 128 heads of 64, https://github.com/vllm-project/vllm/pull/27299 (2025-10-25, "Original"). An update:
47 to 167 us for 32 to 128 sequences of 64 heads of 128 in fp32 on a B200,
https://github.com/flashinfer-ai/flashinfer/pull/4616.
"""


@calibrations.cached_by_arch
def mixer_model(arch: GpuSpec, kernel: str, library: str | None) -> MixerModel:
    """Return the coefficients of a library's kernel on a GPU; None: of the first library that has it.

    A kernel that a library has no timings of is taken from the next library. Without a calibration of this GPU that of
    the nearest one carries over (`nearest_first`).

    Raises:
        UnsupportedError: no library has timings of the kernel.
    """
    if kernel in _ASSUMED:
        origin = calibrations.Origin(False, None, "assumed: nothing of this kernel was timed", MIXER_LIBRARIES[0])
        ends = math.exp(-_ASSUMED_SPREAD), math.exp(_ASSUMED_SPREAD)
        return MixerModel(MIXER_DEFAULTS | _ASSUMED[kernel], library or origin.library, origin, ends)
    chip = calibrations.chip_of(arch)
    for name in dict.fromkeys((library or MIXER_LIBRARIES[0], *MIXER_LIBRARIES)):
        paths = calibrations.nearest_first(
            data_root() / "calibration", chip, mixer_calibration_path(chip.name, name).name
        )
        for calibration in map(MixerCalibration.load, paths):
            fitted = calibration.families.get(kernel)
            if fitted is not None:
                is_own = calibration.gpu == chip.name
                origin = calibrations.origin_of(calibration.gpu, calibration.date, name, is_own=is_own)
                carried = OTHER_MAKER if calibrations.is_other_maker(chip, calibration.gpu) else OTHER_GENERATION
                wide = math.log1p(fitted.p80_frac) + (0.0 if is_own else carried)
                values = calibrations.to_chip(MIXER_DEFAULTS | fitted.coefficients, chip, calibration.gpu)
                ends = math.exp(-wide), math.exp(wide)
                return MixerModel(values, name, calibrations.checked_origin(arch, origin), ends)
    raise UnsupportedError(f"no timings of {kernel} are committed for any GPU")
