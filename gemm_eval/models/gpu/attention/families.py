"""Families of attention kernels, which library runs which, their calibrations and the times of problems."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, data_root
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu import calibration as calibrations
from gemm_eval.models.gpu.attention import latent, streams
from gemm_eval.models.gpu.attention.rows import (
    BACKWARD,
    CONTEXT,
    CONTEXT_MMA,
    CONTEXT_PLAIN,
    HEAD_DIMS,
    PACKED_HEADS,
    PACKED_PLAIN,
    SINGLE_HEADS,
    AttentionRows,
)
from gemm_eval.models.gpu.coefficients import Coefficient, complete_coefficients
from gemm_eval.models.gpu.correction_kernels import ATTENTION_FEATURES, answer_attention
from gemm_eval.models.gpu.learned import NOTHING_LEARNED, Features, Learned, features_of, learned_for
from gemm_eval.workload import AttentionProblem

FLASHINFER = "flashinfer"
ATTENTION_LIBRARIES = {
    "trtllm": "TensorRT-LLM's kernels, as serving engines run them: with positions and the write of the cache",
    "cudnn": "cuDNN's, as PyTorch calls them",
    "flash": "FlashAttention 2, as PyTorch comes with it",
    FLASHINFER: "FlashInfer's, of one query over latents (MLA)",
}
"""Whose kernels are modelled, and what they are."""

AITER = "aiter"
"""Kernels of aiter and CK on AMD's GPUs, of which none was timed: modelled as those of `DEFAULT_ATTENTION`."""

DEFAULT_ATTENTION = "trtllm"
"""Where nothing is said."""

Floats = npt.NDArray[np.float64]
Terms = Callable[[GpuSpec, Mapping[str, float], AttentionRows], dict[str, Floats]]


class AttentionFamily(NamedTuple):
    """Kernels that share a model."""

    name: str  # as calibrations have it
    what: str  # the kernels, in words
    coefficients: Sequence[Coefficient]  # those of its model
    term_meanings: Mapping[str, str]  # its terms, and what their time goes to
    terms: Terms  # the model
    library: str = DEFAULT_ATTENTION  # whose kernels they are, of `ATTENTION_LIBRARIES`

    @property
    def defaults(self) -> dict[str, float]:
        """Coefficients before any fit."""
        return {item.name: item.default for item in self.coefficients}


def _packed(name: str, what: str, kernel: streams.PackedKernel) -> AttentionFamily:
    coefficients = PACKED_HEADS if kernel.has_positions else PACKED_PLAIN
    return AttentionFamily(
        name, what, coefficients, streams.DECODE_TERMS, partial(streams.packed_heads_terms, kernel=kernel)
    )


def _context(
    name: str, what: str, coefficients: Sequence[Coefficient], kernel: streams.ContextKernel
) -> AttentionFamily:
    return AttentionFamily(
        name, what, coefficients, streams.CONTEXT_TERMS, partial(streams.context_terms, kernel=kernel)
    )


def _single(name: str, what: str) -> AttentionFamily:
    return AttentionFamily(name, what, SINGLE_HEADS, streams.DECODE_TERMS, streams.single_heads_terms)


def _latents(name: str, what: str, coefficients: Sequence[Coefficient], terms: Terms) -> AttentionFamily:
    return AttentionFamily(name, what, coefficients, latent.LATENT_TERMS, terms)


_CUDNN_KEYS = {64: 128, 128: 128, 192: 128, 256: 64}  # inferred
_FLASH_KEYS = {64: 128, 128: 64, 192: 64, 256: 64}  # FlashAttention 2.7, flash_fwd_launch_template.h, sm_80 and sm_90
_FAMILIES = (
    _context("context", "a CTA for each tile of queries", CONTEXT, streams.ContextKernel()),
    _context(
        "context_mma", "likewise, on mma.sync with a kernel for each size of heads", CONTEXT_MMA,
        streams.ContextKernel(),
    ),
    _packed("packed_mma", "query heads of a group in the rows of mma.sync", streams.MMA_PACKED),
    _packed(
        "packed_mma_narrow", "likewise, of a cache in 8 bits, whose keys are never cut",
        streams.PackedKernel(max_parts=1, padded_to=256),
    ),
    _packed(
        "packed_wgmma", "query heads of a group in wgmma, of a cache in 8 bits",
        streams.PackedKernel(row_tile=8, counts_all_keys=False),
    ),
    _packed(
        "packed_tcgen05", "query heads of a group in tcgen05",
        streams.PackedKernel(key_tile=256, row_tile=8, waves=1.0, counts_all_keys=False),
    ),
    _packed(
        "single_tcgen05", "query heads by themselves, or of large groups, in tcgen05",
        streams.PackedKernel(row_tile=8, waves=1.0, counts_all_keys=False, packs_heads=False),
    ),
    _single("single", "a CTA for each query head"),
    _single("single_narrow", "likewise, of a cache in 8 bits"),
    AttentionFamily(
        "latent_context", "MLA, heads expanded", latent.LATENT_CONTEXT, latent.LATENT_CONTEXT_TERMS,
        latent.latent_context_terms,
    ),
    _latents("latent_whole", "MLA, latents; keys are never cut", latent.WHOLE_LATENTS, latent.latent_terms),
    _latents("latent_split", "MLA, latents; keys are cut", latent.SPLIT_LATENTS, latent.latent_terms),
    _latents(
        "latent_cluster", "MLA, latents; clusters for 128 heads", latent.CLUSTER_LATENTS, latent.cluster_latent_terms
    ),
    AttentionFamily(
        "flashinfer_decode", "FlashInfer, MLA, latents", latent.SPLIT_LATENTS, latent.LATENT_TERMS,
        partial(latent.latent_terms, kernel=latent.FLASHINFER_LATENTS), FLASHINFER,
    ),
)  # fmt: skip
_PLAIN = tuple(
    item._replace(library=library)
    for library, name, keys, kernel in (
        ("cudnn", "cuDNN", _CUDNN_KEYS, streams.PackedKernel(waves=2.0, has_positions=False)),
        (
            "flash", "FlashAttention 2", _FLASH_KEYS,
            streams.PackedKernel(row_tile=64, waves=None, counts_all_keys=False, has_positions=False),
        ),
    )
    for item in (
        _context(
            f"{library}_context", f"{name}, a CTA for each tile of queries", CONTEXT_PLAIN,
            streams.ContextKernel(128, keys, has_positions=False),
        ),
        _packed(f"{library}_decode", f"{name}, one query over a cache", kernel),
        _packed(f"{library}_decode_wide", "likewise, heads of more than 128 elements", kernel),
    )
)  # fmt: skip
_BACKWARD = tuple(
    AttentionFamily(
        f"{library}_backward", f"{name}, gradients", BACKWARD, streams.BACKWARD_TERMS,
        partial(streams.backward_terms, kernel=kernel), library,
    )
    for library, name, kernel in (
        ("cudnn", "cuDNN", streams.CUDNN_BACKWARD), ("flash", "FlashAttention 2", streams.FLASH_BACKWARD),
    )
)  # fmt: skip
ATTENTION_FAMILIES = {family.name: family for family in (*_FAMILIES, *_PLAIN, *_BACKWARD)}
"""By name."""

_MAX_PACKED_ROWS = 64  # query heads of a group x tokens, in a kernel for few queries
_MAX_PACKED_GROUP = 32
_NARROW_BITS, _WIDE_BITS = 8.0, 16
_PLAIN_DIM = 128  # from which on one query over a cache has kernels of another kind in cuDNN and FlashAttention
_TCGEN05 = frozenset({"sm_100", "sm_103"})
_ONE_KERNEL_A_SIZE = frozenset({"sm_89", "sm_120"})
_CUDNN_GRADIENTS = frozenset({"sm_90", "sm_100", "sm_103"})
_LEAST_SM_SHARE = 4.0  # TensorRT-LLM 1.x: packed kernels only where their CTAs, four times, are as many as the SMs


def can_run_as_generation(rows: AttentionRows, library: str) -> npt.NDArray[np.bool_]:
    """Return which problems kernels for few queries can take: one token, or some verified with the heads of a group.

    Engines choose kernels by phase. Whole prompts, whose queries are all of the keys, are of the context phase however
    short they are; absorbed latents are of the generation phase.
    """
    if library != DEFAULT_ATTENTION:
        one: npt.NDArray[np.bool_] = (rows.q_len == 1.0) & (rows.is_backward == 0)
        return one
    fits = (rows.q_len == 1.0) | ((rows.group * rows.q_len <= _MAX_PACKED_ROWS) & (rows.is_causal > 0))
    return (fits & (rows.q_len != rows.kv_len)) | (rows.is_latent > 0)


def can_run_as_context(rows: AttentionRows, library: str) -> npt.NDArray[np.bool_]:
    """Return which problems kernels for many queries can take: prompts, chunks of them, and tokens to be verified."""
    is_one = (rows.q_len == 1.0) & (rows.is_backward == 0)
    if library == DEFAULT_ATTENTION:
        is_one = is_one & (rows.q_len != rows.kv_len)
    return ~is_one & (rows.is_latent == 0)


def library_of_gradients(arch: GpuSpec) -> str:
    """Return whose kernels PyTorch takes for gradients: cuDNN's from Hopper on, else FlashAttention's."""
    return "cudnn" if arch.sm_arch in _CUDNN_GRADIENTS else "flash"


def check_attention_library(problem: AttentionProblem, library: str) -> None:
    """Refuse what a library's kernels do not do, or what was never timed of them.

    Gradients with windows are counted in tiles, as cuDNN and FlashAttention leave out those that are masked.

    Raises:
        UnsupportedError: the message says what.
    """
    if library == DEFAULT_ATTENTION:
        return
    is_of_latents = library == FLASHINFER
    is_forward = not problem.backward
    wanting = {
        "gradients": problem.backward and is_of_latents,
        "anything but one query over latents": is_of_latents and not (problem.is_latent and problem.q_len == 1),
        "types of 8 bits": problem.dtype.bits != _WIDE_BITS or problem.kv_type.bits != _WIDE_BITS,
        "windows": is_forward and problem.window is not None and problem.window < problem.kv_len,
        "latents": problem.is_latent and not is_of_latents,
        "values of another size than keys": problem.value_dim != problem.head_dim
        and not is_of_latents
        and (is_forward or library != "cudnn"),
        f"heads of more than {HEAD_DIMS[-1]} elements": problem.head_dim > HEAD_DIMS[-1] and not is_of_latents,
        "attention sinks": is_forward and problem.has_sinks,
        "chunks of a prompt": is_forward
        and library == "cudnn"
        and problem.causal
        and 1 < problem.q_len < problem.kv_len,
    }
    for what, is_asked in wanting.items():
        if is_asked:
            asked = f"gradients of attention by {library}"
            if is_forward:
                asked = f"attention by {library}, but for {DEFAULT_ATTENTION}"
            raise UnsupportedError(f"{what}: not modelled for {asked}")


def families_of_rows(arch: GpuSpec, rows: AttentionRows, library: str, *, is_decode: bool) -> npt.NDArray[np.str_]:
    """Return the family that a library runs each problem with.

    Args:
        is_decode: as kernels for few queries take them; else as those for many do.
    """
    if library == FLASHINFER:
        return np.full(len(rows), "flashinfer_decode")
    if library != DEFAULT_ATTENTION:
        decode = np.where(rows.head_dim <= _PLAIN_DIM, f"{library}_decode", f"{library}_decode_wide")
        many = np.where(rows.is_backward > 0, f"{library}_backward", f"{library}_context")
        return decode if is_decode else many
    if not is_decode:
        context = "context_mma" if arch.sm_arch in _ONE_KERNEL_A_SIZE else "context"
        names = np.where(rows.head_dim != rows.value_dim, "latent_context", context)
    elif arch.sm_arch in _TCGEN05:
        is_packed = (rows.group > 1.0) & (rows.group <= _MAX_PACKED_GROUP)
        names = np.where(is_packed, "packed_tcgen05", "single_tcgen05")
    else:
        names = _before_tcgen05(arch, rows)
    if is_decode and (rows.is_latent > 0).any():
        latents = "latent_whole" if latent.latent_kernel(arch).schedule == "whole" else "latent_split"
        names = np.where(rows.is_latent > 0, latents, names)
        names = np.where((rows.is_latent > 0) & latent.has_cluster_kernel(arch, rows), "latent_cluster", names)
    return names.astype(np.str_)


def _before_tcgen05(arch: GpuSpec, rows: AttentionRows) -> npt.NDArray[np.str_]:
    is_narrow = rows.kv_bits <= _NARROW_BITS
    has_group = (rows.group > 1.0) & (rows.group <= _MAX_PACKED_GROUP)
    units = rows.batch * rows.num_kv_heads
    ctas = units * streams.num_parts(arch.num_sms, units, rows.kv_len, streams.MMA_PACKED)
    fills = (ctas * _LEAST_SM_SHARE >= arch.num_sms) | (rows.q_len > 1.0)
    some_rows = has_group | (rows.q_len > 1.0)
    names = np.where(some_rows & fills, "packed_mma", np.where(is_narrow, "single_narrow", "single"))
    narrow = {"sm_90": "packed_wgmma", "sm_89": "packed_mma_narrow", "sm_120": "packed_mma_narrow"}.get(arch.sm_arch)
    return names if narrow is None else np.where(is_narrow & some_rows, narrow, names)


ATTENTION_MODEL_VERSION = "attention-4"


ATTENTION = "attention"
"""Name of the subject, in files of what was learned of it."""


def _answers(learned: Learned, rows: AttentionRows, physics_us: Floats) -> Floats:
    """Return what was learned of problems, as `answer_attention` writes it, given their latencies by the terms."""
    out = np.empty((len(rows), len(ATTENTION_FEATURES) + 5))
    answer_attention(rows.table, physics_us, *learned.trees, learned.spreads, learned.physics_spreads, out)
    return out


def attention_features(rows: AttentionRows, latency_us: Floats) -> Features:
    """Return the features of problems that corrections read, given their latencies by the terms, in us."""
    columns = _answers(NOTHING_LEARNED, rows, latency_us)[:, 4:]
    return features_of(ATTENTION_FEATURES, ATTENTION_FEATURES.index("window"), columns)


class AttentionCalibration(calibrations.KernelsCalibration):
    """Coefficients of a library's attention, as `gemm-eval calibrate attention` writes them."""

    command = "gemm-eval calibrate attention"
    subject = "attention"
    kernels: ClassVar = {name: (family.what, family.coefficients) for name, family in ATTENTION_FAMILIES.items()}


def attention_calibration_path(gpu: str, library: str) -> Path:
    """Return where the calibration of a library's attention on a GPU lies, if there is one."""
    return data_root() / "calibration" / gpu / f"attention-{library}.yaml"


class AttentionCoefficients(NamedTuple):
    """Coefficients of all families of a library on a GPU, and where those of each come from."""

    values: dict[str, dict[str, float]]
    origins: dict[str, calibrations.Origin]


def attention_coefficients(arch: GpuSpec, library: str) -> AttentionCoefficients:
    """Return the coefficients of all families of a library on a GPU, and where they come from.

    Each family is taken from the calibration of this GPU, else from that of the nearest GPU that has it
    (`nearest_first`), else it has its defaults.
    """
    values, origins = _coefficients(data_root(), calibrations.chip_of(arch), library)
    return AttentionCoefficients(
        {name: dict(items) for name, items in values.items()},
        {name: calibrations.checked_origin(arch, origin) for name, origin in origins.items()},
    )


@cache
def _coefficients(root: Path, chip: calibrations.Chip, library: str) -> AttentionCoefficients:
    families = {name: family for name, family in ATTENTION_FAMILIES.items() if family.library == library}
    values = {name: family.defaults for name, family in families.items()}
    origins = dict.fromkeys(families, calibrations.Origin(False, None, "defaults of the kernels, not fitted"))
    paths = calibrations.nearest_first(root / "calibration", chip, attention_calibration_path(chip.name, library).name)
    for calibration in map(AttentionCalibration.load, reversed(paths)):  # the best comes last and holds
        origin = calibrations.origin_of(calibration.gpu, calibration.date, library, is_own=calibration.gpu == chip.name)
        for name, fitted in calibration.families.items():
            complete = complete_coefficients(fitted.coefficients, families[name].coefficients)
            values[name] = calibrations.to_chip(complete, chip, calibration.gpu)
            origins[name] = origin
    return AttentionCoefficients(values, origins)


class AttentionCosts(NamedTuple):
    """Costs of attention problems."""

    latency_us: Floats  # [rows]
    families: npt.NDArray[np.str_]  # [rows], names of `ATTENTION_FAMILIES`
    terms: list[dict[str, float]]  # of each row, by name, in microseconds; they add up to its latency


def family_us(arch: GpuSpec, name: str, c: Mapping[str, float], rows: AttentionRows) -> Floats:
    """Return the time of problems by one family, [rows], in microseconds."""
    return np.sum(list(ATTENTION_FAMILIES[name].terms(arch, c, rows).values()), axis=0)


def attention_costs(
    arch: GpuSpec, coefficients: Mapping[str, Mapping[str, float]], rows: AttentionRows, library: str
) -> AttentionCosts:
    """Return the time of attention by the kernels that a library takes.

    Several tokens over a longer cache can be verified by either kind of kernels; the faster is taken. One token runs on
    those for few queries, a whole prompt on those for many.
    """
    latency_us, families = np.full(len(rows), np.inf), np.full(len(rows), "", dtype="U32")
    terms: list[dict[str, float]] = [{} for _ in range(len(rows))]
    for is_decode, can_run in ((True, can_run_as_generation), (False, can_run_as_context)):
        runs = can_run(rows, library)
        if not runs.any():
            continue
        some = rows.take(runs)
        names = families_of_rows(arch, some, library, is_decode=is_decode)
        for name in dict.fromkeys(names.tolist()):
            places = np.flatnonzero(runs)[names == name]
            times = ATTENTION_FAMILIES[name].terms(arch, coefficients[name], some.take(names == name))
            us: Floats = np.sum(list(times.values()), axis=0)
            is_faster = us < latency_us[places]
            places = places[is_faster]
            latency_us[places], families[places] = us[is_faster], name
            columns = (of_term[is_faster].tolist() for of_term in times.values())
            for place, *values in zip(places.tolist(), *columns, strict=True):
                terms[place] = dict(zip(times, values, strict=True))
    return AttentionCosts(latency_us, families, terms)


def attention_answers(arch: GpuSpec, library: str, rows: AttentionRows, costs: AttentionCosts) -> Floats:
    """Return what was learned of problems, [rows, 4], as of `Learned.answers`."""
    families, us = set(costs.families.tolist()), costs.latency_us
    if len(families) == 1:
        return _answers(_learned(arch, library, *families), rows, us)[:, :4]
    answers = np.empty((len(rows), 4))
    for family in families:
        mask = costs.families == family
        answers[mask] = _answers(_learned(arch, library, family), rows.take(mask), us[mask])[:, :4]
    return answers


@calibrations.cached_by_arch
def _learned(arch: GpuSpec, library: str, family: str) -> Learned:
    coefficients = attention_coefficients(arch, library)
    return learned_for(
        arch, ATTENTION, family, coefficients.origins[family], coefficients.values[family], ATTENTION_MODEL_VERSION,
        ATTENTION_FEATURES,
    )  # fmt: skip
