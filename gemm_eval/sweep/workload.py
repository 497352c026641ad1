"""Workloads of a sweep: GEMMs and attention with counts, of models or by themselves."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemm_eval.arch import ArchSpec, MulticoreSpec
from gemm_eval.checks import check_flag
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import AttentionResult
from gemm_eval.sweep.space import check_count
from gemm_eval.transformer import (
    AttentionWork,
    LayerGemm,
    ModelConfig,
    load_model,
    model_on,
    model_operations,
    transformer_gemms,
    types_on,
)
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.words import shown
from gemm_eval.workload import AttentionProblem, GemmProblem, make_problem

_ATTENTION_GEMMS = ("attn_score", "attn_value")  # what fused attention computes
_GEMM_OPTIONS = ("quantize_lm_head", "quantize_router", "expert_imbalance")  # which attention does not depend on
_NAME_CHARS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


@dataclass(frozen=True)
class Workload:
    """GEMMs and attention that run one after the other.

    Attributes:
        name: letters, digits and underscores; columns of several workloads begin with it.
        gemms: different problems, each with how often it runs.
        attention: likewise, of fused attention (`GEMMEvaluator.evaluate_attention`; unfused on chips that cannot).
        num_tokens: tokens that one run makes or reads, for `tokens_per_s`; None: not a language model.
    """

    name: str
    gemms: tuple[tuple[GemmProblem, int], ...]
    num_tokens: int | None = None
    attention: tuple[tuple[AttentionProblem, int], ...] = ()

    def __repr__(self) -> str:
        attention = f" and {len(self.attention)} of attention" if self.attention else ""
        return f"<Workload {self.name} of {len(self.gemms)} GEMMs{attention}, num_tokens {self.num_tokens}>"

    def __post_init__(self) -> None:
        if not self.name or not set(self.name) <= _NAME_CHARS or self.name[0].isdigit():
            raise InvalidOptionError(f"a workload's name is of letters, digits and _, got {shown(self.name)}")
        for name, kind in (("gemms", GemmProblem), ("attention", AttentionProblem)):
            counts: dict[Any, int] = {}
            for problem, count in getattr(self, name):
                if not isinstance(problem, kind):
                    raise InvalidOptionError(
                        f"{self.name}: {name} must be ({kind.__name__}, count), got {shown(problem)}"
                    )
                counts[problem] = counts.get(problem, 0) + check_count(f"{self.name}: count", count)
            object.__setattr__(self, name, tuple(counts.items()))
        if not self.gemms:
            raise InvalidOptionError(f"workload {self.name} has no GEMMs")
        if self.num_tokens is not None:
            check_count(f"{self.name}: num_tokens", self.num_tokens)

    @property
    def flop(self) -> int:
        """Operations of one run, a MAC being two."""
        return sum(count * problem.flop for problem, count in self.problems)

    @property
    def problems(self) -> tuple[tuple[GemmProblem | AttentionProblem, int], ...]:
        """GEMMs, then attention, with counts."""
        return (*self.gemms, *self.attention)


def transformer_workloads(
    model: ModelConfig | str | os.PathLike[str],
    *,
    batch_size: int = 1,
    seq_len: int = 2048,
    phases: Sequence[Literal["prefill", "decode", "train"]] = ("prefill", "decode"),
    fused: bool = True,
    **options: Any,
) -> list[Workload]:
    """Return a workload for each phase of a transformer, named after it: one pass, every layer counted.

    Args:
        model: a `ModelConfig`, or the name or path of one.
        batch_size, seq_len, options: as for `transformer_gemms` (`dtype`, `tensor_parallel`, ...).
        phases: ``"prefill"``, ``"decode"`` and ``"train"``, a microbatch forward and backward; any of them.
        fused: attention is one kernel, whose scores stay on the chip, as engines have it; False: two GEMMs, scores and
            values, through DRAM.
    """
    check_flag("fused", fused)
    config = model if isinstance(model, ModelConfig) else load_model(model)
    if config.linear is not None or getattr(config.attention, "indexer", None) is not None:
        raise UnsupportedError(
            f"{config.name} has linear or sparse attention, which sweeps do not price: use estimate_model, on an "
            "NVIDIA GPU"
        )
    workloads = []
    for phase in phases:
        gemms = transformer_gemms(config, phase=phase, batch_size=batch_size, seq_len=seq_len, **options)
        tokens = batch_size * (1 if phase == "decode" else seq_len)
        attention: list[tuple[AttentionProblem, int]] = []
        if fused:
            gemms = tuple(gemm for gemm in gemms if not gemm.name.startswith(_ATTENTION_GEMMS))
            of_step = {name: value for name, value in options.items() if name not in _GEMM_OPTIONS}
            forward_phase = "prefill" if phase == "train" else phase
            operations = model_operations(
                config, phase=forward_phase, batch_size=batch_size, seq_len=seq_len, **of_step
            )
            forward = [
                (item.work.problem, item.num_layers) for item in operations if isinstance(item.work, AttentionWork)
            ]
            backward = [(replace(problem, backward=True), num) for problem, num in forward if phase == "train"]
            attention = forward + backward
        counted = tuple((gemm.problem, gemm.total_count) for gemm in gemms)
        workloads.append(Workload(phase, counted, tokens, tuple(attention)))
    return workloads


def model_workloads(
    model: ModelConfig | str | os.PathLike[str], arch: ArchSpec, *, dtype: str | None = None, **options: Any
) -> list[Workload]:
    """Return the workloads of a model in the types that it has on an arch: `types_on` and `model_on` say which."""
    config = model_on(arch, model if isinstance(model, ModelConfig) else load_model(model))
    return transformer_workloads(config, **types_on(arch, dtype, None, config), **options)


def as_workloads(workloads: Any, arch: ArchSpec, dtype: str | None = None) -> tuple[Workload, ...]:
    """Read what a user gives, see `sweep`: one or several `Workload`s, a model, GEMMs, or a mapping of names to GEMMs.

    (G, M, K, N) are of the default type of the base arch, and a model has the types that it has there, unless `dtype`.
    """
    listed: list[Workload]
    if isinstance(workloads, Workload):
        listed = [workloads]
    elif isinstance(workloads, str | ModelConfig | os.PathLike):
        listed = model_workloads(workloads, arch, dtype=dtype)
    elif isinstance(workloads, Mapping):
        listed = [
            of if isinstance(of, Workload) else Workload(name, tuple(_gemms(of, arch, dtype)))
            for name, of in workloads.items()
        ]
    elif isinstance(workloads, Iterable):
        items = list(workloads)
        are_workloads = bool(items) and all(isinstance(item, Workload) for item in items)
        listed = items if are_workloads else [Workload("gemms", tuple(_gemms(items, arch, dtype)))]
    else:
        raise InvalidOptionError(f"workloads must be GEMMs, a model or Workloads, got {shown(workloads)}")
    names = [workload.name for workload in listed]
    if len(set(names)) < len(names):
        raise InvalidOptionError(f"workloads need names of their own, got {', '.join(names)}")
    return tuple(listed)


def _gemms(items: Any, arch: ArchSpec, dtype: str | None) -> Iterable[tuple[GemmProblem, int]]:
    for item in items:
        is_counted = isinstance(item, Sequence) and len(item) == 2
        gemm, count = item if is_counted else (item, 1)
        if isinstance(gemm, GemmProblem):
            yield gemm, count
        elif isinstance(gemm, LayerGemm) and not is_counted:
            yield gemm.problem, gemm.total_count
        elif isinstance(gemm, Sequence) and len(gemm) == 4:
            yield make_problem(*gemm, default_dtype=arch.default_dtype, dtype=dtype), count
        else:
            raise InvalidOptionError(
                f"a GEMM is (G, M, K, N), ((G, M, K, N), count) or a GemmProblem, got {shown(item)}"
            )


_BITS_PER_BYTE = 8
_PJ_PER_W_US = 1e6
_SCORE_PASSES = 4  # unfused: written by the first GEMM, read and written by the softmax, read by the second GEMM


def attention_dram_bytes(result: AttentionResult) -> float:
    """Return the DRAM traffic of attention: as its mapping has it, else the compulsory bytes, and scores if unfused."""
    if result.dram_bytes is not None:
        return float(result.dram_bytes)
    problem = result.problem
    scores = problem.batch * problem.num_heads * problem.q_len * problem.kv_len * problem.dtype.bits / _BITS_PER_BYTE
    return float(problem.num_bytes) + (0.0 if result.is_fused else _SCORE_PASSES * scores)


def attention_energy_pj(arch: ArchSpec, result: AttentionResult) -> float:
    """Return the energy of attention by MODEL.md, "Energy", without the softmax; nan where the chip does not say."""
    if not isinstance(arch, MulticoreSpec):
        return math.nan
    arch = arch.for_dtype(result.problem.dtype)
    mac_pj = arch.mac_pj.get(result.problem.dtype)
    if mac_pj is None or arch.sram_pj_per_byte is None or arch.dram_pj_per_byte is None:
        return math.nan
    if arch.noc_gb_per_s is not None and arch.noc_pj_per_byte is None:
        return math.nan
    macs, dram_bytes = result.flop / FLOP_PER_MAC, attention_dram_bytes(result)
    operand_bytes = macs * (1 / arch.cube_m + 1 / arch.cube_n) * result.problem.dtype.bits / _BITS_PER_BYTE
    energy_pj = macs * mac_pj + dram_bytes * (arch.dram_pj_per_byte + (arch.noc_pj_per_byte or 0.0))
    energy_pj += (dram_bytes + operand_bytes) * arch.sram_pj_per_byte
    return energy_pj + arch.static_w * _PJ_PER_W_US * result.latency_us
