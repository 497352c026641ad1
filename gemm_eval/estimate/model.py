"""`estimate_model`: time to first token, time per output token, tokens a second and memory of a model on an arch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any

from gemm_eval.arch import PCIE_BOXES, ArchSpec, GpuSpec, MulticoreSpec
from gemm_eval.checks import as_integer, check_flag, check_word, plain_number
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.estimate.costs import OperationCost, operation_costs
from gemm_eval.estimate.pipeline import pipeline_us
from gemm_eval.estimate.result import ModelEstimate, StepEstimate
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.frozen import FrozenDict
from gemm_eval.moe import Distribution
from gemm_eval.transformer import (
    CHUNK_TOKENS,
    MEMORY_FRAC,
    Fusions,
    ModelConfig,
    Operation,
    check_memory,
    load_model,
    model_memory,
    model_on,
    model_operations,
    num_joined,
    types_on,
)
from gemm_eval.words import shown
from gemm_eval.workload import MAX_DIM

__all__ = ["estimate_model", "estimate_models"]

_MAX_GUESSES = 64
_MAX_WORKERS = 256
_CHUNK_POINTS = 250  # that a worker is handed at once


def estimate_model(
    model: ModelConfig | str | os.PathLike[str],
    arch: ArchSpec | GEMMEvaluator | str | os.PathLike[str],
    batch: int = 1,
    *,
    prompt_len: int = 1024,
    output_len: int = 256,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: int = 1,
    dtype: str | None = None,
    dense_dtype: str | None = None,
    expert_dtype: str | None = None,
    kv_dtype: str | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
    speculative_tokens: int = 0,
    acceptance: float = 0.7,
    expert_load: str | Distribution = "uniform",
    fusions: Fusions | None = None,
    fused: bool | None = None,
    attention_library: str | None = None,
    collective_library: str | None = None,
    expert_library: str | None = None,
    interconnect: str | None = None,
    memory_frac: float = MEMORY_FRAC,
    ignore_memory: bool = False,
) -> ModelEstimate:
    """Say what a model does on an arch: how soon, how fast, and whether it fits.

    >>> estimate_model("llama-3-8b", "h200-sxm", 32, prompt_len=2048)     # doctest: +SKIP

    A step is the sum of its operations, one after the other in a CUDA graph, as engines run them: GEMMs, attention,
    experts, messages between devices, and what is bound by memory; GEMMs and attention with what they take more between
    others than alone (`GEMMEvaluator.switch_us`). The host, sampling parameters, scheduling and the network to clients
    are not in it.

    Args:
        model: a config, the name of a preset, or a Hugging Face config.json.
        arch: a device; or an evaluator, whose options GEMMs then have.
        batch: sequences that a replica decodes together; with experts over more devices than `tensor_parallel`, of each
            of its tensor-parallel groups. Pipeline stages work on `pipeline_parallel` parts of it at once.
        prompt_len, output_len: tokens of each sequence.
        tensor_parallel, pipeline_parallel, expert_parallel: degrees. A group of tensor or expert parallelism lies
            within the devices that the link of the arch joins; pipeline stages may lie beyond, in nodes whose network
            is then taken to be as fast as the link, which `explain()` says.
        dtype, dense_dtype, expert_dtype: as for `transformer_gemms`; None: as the model's file says.
        kv_dtype: of the KV cache; None: as the file says, else the type of activations.
        chunk_tokens: of a prompt in one step of prefill, at most.
        speculative_tokens: tokens that are guessed and verified in each step of decode; what guesses them is not
            counted.
        acceptance: share of guesses that hold, each only if those before it do.
        expert_load: rows of each expert; see `transformer_gemms`.
        fusions: which operations run as one kernel; None: all that engines fuse, so that activations of narrow GEMMs
            are quantized in the norm, activation or attention before (`Fusions(quantization=False)`: by a kernel of its
            own before each GEMM).
        fused: attention; see `GEMMEvaluator.evaluate_attention`.
        attention_library, collective_library, expert_library: whose kernels of attention, messages and experts; None:
            what engines take.
        interconnect: how a server joins GPUs over PCIe (`GEMMEvaluator.evaluate_collective`); other GPUs keep their
            link. None: as the spec says.
        memory_frac: share of the DRAM that may be used; the rest is the runtime's.
        ignore_memory: go on where the model does not fit.

    Raises:
        InfeasibleError: it does not fit; the error names each change that would do, with its figure; or no mapping
            of a GEMM does.
        InvalidOptionError, InvalidProblemError: an option out of its range, or not for this model.
        ModelConfigError, ArchError: no such model or arch.
        UnsupportedError: the arch cannot run a type, or says nothing of the link between its devices.
    """  # fmt: skip
    evaluator = _evaluator(arch)
    published = model if isinstance(model, ModelConfig) else load_model(model)
    config = model_on(evaluator.arch, published)
    asked = {
        "batch": as_integer("batch", batch, 1, MAX_DIM),
        "prompt_len": as_integer("prompt_len", prompt_len, 1, MAX_DIM),
        "output_len": as_integer("output_len", output_len, 1, MAX_DIM),
        "chunk_tokens": as_integer("chunk_tokens", chunk_tokens, 1, MAX_DIM),
        "speculative_tokens": as_integer("speculative_tokens", speculative_tokens, 0, _MAX_GUESSES),
    }
    check_flag("ignore_memory", ignore_memory)
    share = plain_number(acceptance)
    if share is None or not 0 <= share <= 1:
        raise InvalidOptionError(f"acceptance must be in 0..1, got {shown(acceptance)}")
    degrees = {
        "tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel, "expert_parallel": expert_parallel,
    }  # fmt: skip
    types: dict[str, Any] = {
        **types_on(evaluator.arch, dtype, dense_dtype, config),
        "expert_dtype": expert_dtype,
        "kv_dtype": kv_dtype,
    }
    held: dict[str, Any] = {
        **degrees, **types, "batch_size": batch, "seq_len": prompt_len + output_len, "chunk_tokens": chunk_tokens,
    }  # fmt: skip
    memory = (
        model_memory(config, **held)
        if ignore_memory
        else check_memory(config, evaluator.arch, memory_frac=memory_frac, **held)
    )
    box = _interconnect(evaluator.arch, interconnect)
    libraries = {
        "attention_library": attention_library, "collective_library": collective_library,
        "expert_library": expert_library,
    }  # fmt: skip
    steps = _Steps(
        config, evaluator, {**degrees, **types, "expert_load": expert_load, "fusions": fusions},
        {"fused": fused, "interconnect": box, **libraries},
    )  # fmt: skip
    prefill = _prefill_steps(steps, prompt_len, chunk_tokens)
    chunk_us = [chunk.stage_us for chunk in prefill]
    tokens = sum(share**place for place in range(speculative_tokens + 1))
    tpot_us, decode = _next_token(steps, asked)
    limit = int(evaluator.arch.dram_bytes * memory_frac) if isinstance(evaluator.arch, GpuSpec) else None
    num_groups = max(1, expert_parallel // tensor_parallel)
    return ModelEstimate(
        model_name=config.name,
        arch_name=evaluator.arch.name,
        batch=batch,
        prompt_len=prompt_len,
        output_len=output_len,
        num_devices=pipeline_parallel * tensor_parallel * num_groups,
        num_groups=num_groups,
        ttft_us=pipeline_us(chunk_us),
        tpot_us=tpot_us / tokens,
        tokens_per_step=tokens,
        prompt_stage_us=tuple(map(sum, zip(*chunk_us, strict=True))),
        prefill=prefill[-1],
        decode=decode,
        memory=memory,
        memory_limit_bytes=limit,
        num_joined_devices=num_joined(evaluator.arch),
        has_expanded_weights=dtype is None and config != published,
        options=FrozenDict(
            asked | degrees | types | {
                "acceptance": share, "expert_load": str(expert_load), "fused": fused, "memory_frac": memory_frac,
                "separate_quantization": not (fusions or Fusions()).quantization,
                "interconnect": box,
            } | libraries
        ),
        _config=config,
        _held=FrozenDict(held),
    )  # fmt: skip


def estimate_models(
    models: Iterable[ModelConfig | str], archs: Iterable[ArchSpec | GEMMEvaluator | str],
    batches: Iterable[int] = (1,), prompt_lens: Iterable[int] = (1024,), *, num_workers: int = 1, **options: Any,
) -> Iterator[ModelEstimate]:  # fmt: skip
    """Yield the estimate of each combination, archs and models outermost; evaluators are shared.

    Args:
        models, archs, batches, prompt_lens: as for `estimate_model`, several of each.
        num_workers: processes that work on it; more than one pay from some hundred combinations on.
        options: the rest of the arguments of `estimate_model`.
    """
    workers = as_integer("num_workers", num_workers, 1, _MAX_WORKERS)
    evaluators = [_evaluator(arch) for arch in archs]
    configs = [model if isinstance(model, ModelConfig) else load_model(model) for model in models]
    points = list(product(evaluators, configs, list(batches), list(prompt_lens)))
    if workers == 1:
        for point in points:
            yield _estimate(point, options)
        return
    size = max(1, min(_CHUNK_POINTS, -(-len(points) // workers)))
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for found in pool.map(partial(_estimate_some, options=options), chunks):
            yield from found


_Point = tuple[GEMMEvaluator, ModelConfig, int, int]


def _estimate(point: _Point, options: dict[str, Any]) -> ModelEstimate:
    evaluator, config, batch, prompt_len = point
    return estimate_model(config, evaluator, batch, prompt_len=prompt_len, **options)


def _estimate_some(points: Sequence[_Point], options: dict[str, Any]) -> list[ModelEstimate]:
    """In a worker: evaluators that came over are made anew there, those of one chunk are one."""
    return [_estimate(point, options) for point in points]


def _evaluator(arch: Any) -> GEMMEvaluator:
    if isinstance(arch, str | os.PathLike | GpuSpec | MulticoreSpec):
        return GEMMEvaluator(arch)
    if not isinstance(arch, GEMMEvaluator):
        raise InvalidInputError(f"arch must be an arch, its name or path, or a GEMMEvaluator, got {shown(arch)}")
    return arch


def _interconnect(arch: ArchSpec, asked: str | None) -> str | None:
    """Return the kind of server that joins GPUs over PCIe; None: they are joined otherwise, or not."""
    if asked is not None:
        check_word("interconnect", asked, PCIE_BOXES)
    link = arch.interconnect if isinstance(arch, GpuSpec) else None
    return (asked or link.topology) if link is not None and link.topology in PCIE_BOXES else None


class _Steps:
    """Steps of a model on an arch, all with the same options."""

    def __init__(
        self, config: ModelConfig, evaluator: GEMMEvaluator, asked: dict[str, Any], priced: dict[str, Any]
    ) -> None:
        self._config, self._evaluator, self._asked, self._priced = config, evaluator, asked, priced
        self.num_stages: int = asked["pipeline_parallel"]

    def step(self, phase: str, batch: int, seq_len: int, new_tokens: int) -> StepEstimate:
        """Return a step of `batch` sequences with `new_tokens` of their `seq_len` positions new."""
        costs: dict[tuple[Operation, ...], tuple[OperationCost, ...]] = {}  # stages in the middle are alike
        stages = []
        for stage in range(self.num_stages):
            operations = model_operations(
                self._config, phase=phase, batch_size=batch, seq_len=seq_len, new_tokens=new_tokens, stage=stage,  # type: ignore[arg-type]
                **self._asked,
            )  # fmt: skip
            if operations not in costs:
                costs[operations] = operation_costs(self._evaluator, operations, **self._priced)
            stages.append(costs[operations])
        return StepEstimate(phase, batch, new_tokens, seq_len, tuple(stages))


def _prefill_steps(steps: _Steps, prompt_len: int, chunk_tokens: int) -> tuple[StepEstimate, ...]:
    """Return the steps of one prompt, chunk by chunk."""
    ends = (*range(chunk_tokens, prompt_len, chunk_tokens), prompt_len)
    starts = (0, *ends[:-1])
    return tuple(steps.step("prefill", 1, end, end - start) for start, end in zip(starts, ends, strict=True))


def _next_token(steps: _Steps, asked: dict[str, int]) -> tuple[float, StepEstimate]:
    """Return the time of a decode step in the middle of the output: all parts of the batch pass all stages."""
    num_parts = min(steps.num_stages, asked["batch"])
    part = -(-asked["batch"] // num_parts)
    new = asked["speculative_tokens"] + 1
    context = asked["prompt_len"] + max(1, asked["output_len"] // 2)
    step = steps.step("decode", part, context + new - 1, new)
    return max(step.latency_us, num_parts * max(step.stage_us)), step
