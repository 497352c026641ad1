"""Prewarming: every GEMM of a model, in ranges of batch and sequence, evaluated before anybody asks."""

import math
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Literal

from gemm_eval.errors import InvalidInputError, InvalidOptionError, ModelConfigError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.transformer.config import ModelConfig, build_config
from gemm_eval.transformer.gemms import model_on, transformer_gemms, types_on
from gemm_eval.transformer.loader import load_model
from gemm_eval.words import as_integer, shown, suggests_names
from gemm_eval.workload import MAX_DIM, GemmProblem

Phase = Literal["prefill", "decode", "train"]
_BOTH: tuple[Phase, ...] = "prefill", "decode"
_MAX_COMBINATIONS = 1_000_000
_DEFAULT_HEAD_DIM = 128  # of Llama, Qwen, Mistral and most others


@dataclass(frozen=True, slots=True)
class PrewarmReport:
    """The outcome of a prewarm.

    Attributes:
        num_gemms: GEMMs over all ranges, the same shape counted each time that it occurs.
        num_unique: different problems among them.
        num_known: of these, how many were in the cache before.
        num_infeasible: of these, how many no mapping fits; they are not cached.
        num_stored: how many were written to disk, 0 where the disk cache is off.
        num_hits_after: how many are cache hits now, looked up once more.
        seconds: time of it all.
    """

    model: str
    num_gemms: int
    num_unique: int
    num_known: int
    num_infeasible: int
    num_stored: int
    num_hits_after: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.model}: {self.num_gemms:,} GEMMs, {self.num_unique:,} unique, {self.num_known:,} known before, "
            f"{self.num_infeasible:,} infeasible, {self.num_stored:,} stored on disk, "
            f"{self.num_hits_after:,} hits after, {self.seconds:.2f} s"
        )


def prewarm(
    evaluator: GEMMEvaluator, model: ModelConfig | str | os.PathLike[str], *, batch_sizes: Sequence[int],
    seq_lens: Sequence[int], phases: Sequence[Phase] = _BOTH, tensor_parallel: Sequence[int] = (1,),
    expert_parallel: Sequence[int] = (1,), dtypes: Sequence[str | None] = (None,), dense_dtype: str | None = None,
    progress: bool | None = None,
) -> PrewarmReport:  # fmt: skip
    """Evaluate every GEMM of a model for all combinations of the ranges, and keep the results in memory and on disk.

    Afterwards each of these GEMMs is a cache hit, in this process and (unless the disk cache is off) in later ones.

    Args:
        seq_lens: tokens of a sequence: new ones in prefill, the context in decode.
        phases: ``"prefill"``, ``"decode"`` and ``"train"``, a microbatch forward and backward; any of them.
        dtypes: shorthands for weight GEMMs; None: as the model's file says, else the default type of the arch.
        dense_dtype: of attention's scores and values, routers and the LM head; None: see `transformer_gemms`.
        progress: as for `GEMMEvaluator.evaluate_many`.

    Raises:
        ModelConfigError: no such model, or a malformed one.
        InvalidInputError: `evaluator` is none.
        InvalidOptionError: an empty range, or a degree that does not divide the model.
        UnsupportedError: the arch cannot run the types.
    """
    started_s = _start(evaluator)
    config = model_on(evaluator.arch, model if isinstance(model, ModelConfig) else load_model(model))
    asked = {
        "phases": phases, "batch_sizes": batch_sizes, "seq_lens": seq_lens, "tensor_parallel": tensor_parallel,
        "expert_parallel": expert_parallel, "dtypes": dtypes,
    }  # fmt: skip
    ranges = [_values(name, values) for name, values in asked.items()]
    if (num := math.prod(map(len, ranges))) > _MAX_COMBINATIONS:
        raise InvalidOptionError(f"the ranges must have at most {_MAX_COMBINATIONS:,} combinations, got {num:,}")
    problems = [
        gemm.problem
        for phase, batch_size, seq_len, tp, ep, dtype in product(*ranges)
        for gemm in transformer_gemms(
            config, phase=phase, batch_size=batch_size, seq_len=seq_len, tensor_parallel=tp, expert_parallel=ep,
            **types_on(evaluator.arch, dtype, dense_dtype, config),
        )
    ]  # fmt: skip
    return _warm(evaluator, config.name, problems, started_s, progress)


@suggests_names
def prewarm_for_transformer(
    evaluator: GEMMEvaluator, hidden_size: int, intermediate_size: int, batch_size: int, seq_len: int, *,
    num_heads: int | None = None, num_kv_heads: int | None = None, head_dim: int = _DEFAULT_HEAD_DIM,
    vocab_size: int | None = None, is_gated: bool = True, dtype: str | None = None, dense_dtype: str | None = None,
    progress: bool | None = None, phase: Phase | None = None,
) -> PrewarmReport:  # fmt: skip
    """Prewarm the GEMMs of a transformer given by its sizes, in prefill and decode; `prewarm` takes models and ranges.

    Args:
        hidden_size, intermediate_size: widths of the model and of its feed-forward network.
        seq_len: tokens of a sequence: new ones in prefill, the context in decode.
        num_heads: query heads (default: hidden_size / head_dim).
        num_kv_heads: key and value heads (default: num_heads).
        head_dim: width of a head.
        vocab_size: also warm the LM head; None: leave it out.
        is_gated: gate and up projection, as in Llama; else up projection only.
        dtype: shorthand for weight GEMMs; None: the default type of the arch.
        dense_dtype: of attention's scores and values and the LM head; None: see `transformer_gemms`.
        progress: as for `GEMMEvaluator.evaluate_many`.
        phase: ``"prefill"``, ``"decode"`` or ``"train"`` alone; None: prefill and decode.

    Raises:
        InvalidInputError: `evaluator` is none.
        InvalidOptionError: sizes that make no transformer, or no such phase.
        UnsupportedError: the arch cannot run the types.
    """
    started_s = _start(evaluator)
    hidden_size = as_integer("hidden_size", hidden_size, 1, MAX_DIM)
    intermediate_size = as_integer("intermediate_size", intermediate_size, 1, MAX_DIM)
    if num_heads is None:
        head_dim = as_integer("head_dim", head_dim, 1, MAX_DIM)
        if hidden_size % head_dim:
            raise InvalidOptionError(
                f"hidden_size must be a multiple of head_dim = {head_dim}, got {hidden_size}; or give num_heads"
            )
        num_heads = hidden_size // head_dim
    sizes = {
        "name": f"transformer-{hidden_size}-{intermediate_size}", "hidden_size": hidden_size, "num_layers": 1,
        "vocab_size": 1 if vocab_size is None else vocab_size,
        "attention": {"kind": "gqa", "num_heads": num_heads, "head_dim": head_dim,
            "num_kv_heads": num_heads if num_kv_heads is None else num_kv_heads},
        "ffn": {"intermediate_size": intermediate_size, "is_gated": is_gated},
    }  # fmt: skip
    try:
        config = build_config(sizes, origin="prewarm_for_transformer")
    except ModelConfigError as error:
        raise InvalidOptionError(f"these sizes make no transformer: {error}") from None
    problems = [
        gemm.problem
        for each in (_BOTH if phase is None else (phase,))
        for gemm in transformer_gemms(
            config, phase=each, batch_size=batch_size, seq_len=seq_len, **types_on(evaluator.arch, dtype, dense_dtype)
        )
        if not gemm.name.startswith("lm_head") or vocab_size is not None
    ]
    return _warm(evaluator, config.name, problems, started_s, progress)


def _values(name: str, values: Any) -> tuple[Any, ...]:
    """Return a range that a user gives, which may be endless."""
    is_range = (
        isinstance(values, Collection) and not isinstance(values, str | bytes) and getattr(values, "ndim", 1) == 1
    )
    result = tuple(islice(values, _MAX_COMBINATIONS + 1)) if is_range else ()
    if not result:
        raise InvalidOptionError(f"{name} must be a sequence of at least one value, got {shown(values)}")
    return result


def _start(evaluator: object) -> float:
    if not isinstance(evaluator, GEMMEvaluator):
        raise InvalidInputError(f"evaluator must be a GEMMEvaluator, got {shown(evaluator)}")
    return time.perf_counter()


def _warm(
    evaluator: GEMMEvaluator, name: str, problems: Sequence[GemmProblem], started_s: float, progress: bool | None
) -> PrewarmReport:
    unique = list(dict.fromkeys(problems))
    hits_before = evaluator.cache_info().records.hits
    table = evaluator.evaluate_many(unique, errors="mark", progress=progress)
    num_known = evaluator.cache_info().records.hits - hits_before
    num_stored = evaluator.save_to_disk(table)
    hits_before = evaluator.cache_info().records.hits
    evaluator.evaluate_many([problem for problem, fits in zip(unique, table.is_feasible, strict=True) if fits])
    return PrewarmReport(
        model=name, num_gemms=len(problems), num_unique=len(unique), num_known=num_known,
        num_infeasible=int((~table.is_feasible).sum()), num_stored=num_stored,
        num_hits_after=evaluator.cache_info().records.hits - hits_before, seconds=time.perf_counter() - started_s,
    )  # fmt: skip
