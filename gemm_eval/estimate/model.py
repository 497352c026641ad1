"""`estimate_model`: TTFT, TPOT, tokens a second and memory of a model on an arch."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any, ClassVar

from gemm_eval.arch import ArchSpec
from gemm_eval.errors import InvalidOptionError
from gemm_eval.estimate.price import IDEAL, Engine
from gemm_eval.estimate.replica import Basis, Replica, StepEstimate, StepSize, evaluator_of, pipeline_us
from gemm_eval.evaluate import GEMMEvaluator, Result
from gemm_eval.frozen import FrozenDict
from gemm_eval.moe import Distribution
from gemm_eval.transformer import (
    Fusions,
    GemmWork,
    Limit,
    ModelConfig,
    ModelMemory,
    largest_batch,
    load_model,
    num_joined,
)
from gemm_eval.units import per_s, time_text
from gemm_eval.words import as_integer, check_flag, plain_number, shown, suggests_names
from gemm_eval.workload import MAX_DIM


def _words(interval_us: tuple[float, float]) -> str:
    return " to ".join(map(time_text, interval_us))


@dataclass(frozen=True, slots=True)
class ModelEstimate(Result):
    """TTFT, TPOT, throughput and memory of a model on an arch.

    Attributes:
        batch: sequences that are decoded together on a replica: a group of `num_devices` devices.
        num_groups: of data-parallel attention in it, where experts are spread over more devices than a tensor-parallel
            group has; each has `batch` sequences.
        ttft_us: TTFT of one prompt without queueing: its chunks follow each other through the stages, and each
            stage works on one chunk at a time (`gemm_eval.estimate.pipeline_us`).
        tpot_us: time per output token of a sequence, in the middle of its output; with speculation the time of a
            step over the tokens that it gives.
        prompt_stage_us: time that each pipeline stage works on one prompt, over all of its chunks.
        tokens_per_step: of a sequence: 1, or with speculation what is accepted, and one.
        prefill, decode: the steps behind both; of a prompt in chunks the last one.
        memory: what the device that holds most holds, with all sequences at their full length.
        memory_limit_bytes: what may be held; None: the arch does not say its DRAM.
        num_joined_devices: devices that the link of the arch joins: a node; more lie in several, which a network joins.
        has_expanded_weights: the arch does not multiply a type of the checkpoint, whose weights are expanded first
            (`gemm_eval.transformer.model_on`).
        engine: the serving engine.
        options: what was asked, by name.
    """

    model_name: str
    arch_name: str
    batch: int
    prompt_len: int
    output_len: int
    num_devices: int
    num_groups: int
    ttft_us: float
    tpot_us: float
    tokens_per_step: float
    prompt_stage_us: tuple[float, ...]
    prefill: StepEstimate
    decode: StepEstimate
    memory: ModelMemory
    memory_limit_bytes: int | None
    num_joined_devices: int
    has_expanded_weights: bool
    engine: Engine
    options: FrozenDict[str, Any]
    _config: ModelConfig = field(repr=False, compare=False)
    _limit: Limit | None = field(repr=False, compare=False)
    _held: FrozenDict[str, Any] = field(repr=False, compare=False)
    _derived: ClassVar[tuple[str, ...]] = (
        "ttft_interval_us", "tpot_interval_us", "request_us", "decode_tokens_per_s", "decode_tokens_per_s_per_device",
        "tokens_per_s_per_device", "fits", "largest_batch", "basis",
    )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<ModelEstimate {self.model_name} on {self.num_devices} x {self.arch_name}: TTFT "
            f"{time_text(self.ttft_us)}, TPOT {time_text(self.tpot_us)}, "
            f"{self.decode_tokens_per_s_per_device:,.0f} tokens/s a device>"
        )

    @property
    def ttft_interval_us(self) -> tuple[float, float]:
        """The interval of TTFT, as wide in proportion as that of a step of a prompt."""
        return self.prefill.interval_of(self.ttft_us, self.engine.ttft_spread)

    @property
    def tpot_interval_us(self) -> tuple[float, float]:
        """The interval of the time per output token, as wide in proportion as that of a decode step."""
        return self.decode.interval_of(self.tpot_us, self.engine.tpot_spread)

    @property
    def request_us(self) -> float:
        """Time of a request: TTFT, and TPOT for each further token."""
        return self.ttft_us + (self.output_len - 1) * self.tpot_us

    @property
    def decode_tokens_per_s(self) -> float:
        """Output tokens a second of the replica while it only decodes."""
        return per_s(self.batch * self.num_groups, self.tpot_us)

    @property
    def decode_tokens_per_s_per_device(self) -> float:
        """Output tokens a second of a device while it only decodes."""
        return self.decode_tokens_per_s / self.num_devices

    @property
    def tokens_per_s_per_device(self) -> float:
        """Output tokens a second of a device in the long run: each sequence's prompt takes its time too."""
        # prompts follow each other without a gap, so that each takes the time of its slowest stage
        cycle_us = self.batch * max(self.prompt_stage_us) + self.output_len * self.tpot_us
        return per_s(self.batch * self.num_groups * self.output_len, cycle_us) / self.num_devices

    @property
    def fits(self) -> bool | None:
        """True if a device holds the model; None: the arch does not say its DRAM."""
        return None if self.memory_limit_bytes is None else self.memory.total_bytes <= self.memory_limit_bytes

    @property
    def largest_batch(self) -> int | None:
        """The most sequences that fit, 0: not one; None: the arch does not say its DRAM."""
        return None if self._limit is None else largest_batch(self._config, self._limit, **self._held)

    def explain(self) -> str:
        """Return a short text: the figures that are asked for, and where the time goes."""
        held = (
            f"{self.memory.total_bytes / 1e9:,.1f} GB a device; whether that fits is not checked, as {self.arch_name} "
            "does not say its dram_bytes"
        )
        if self.memory_limit_bytes is not None:
            held = (
                f"{self.memory.total_bytes / 1e9:,.1f} of {self.memory_limit_bytes / 1e9:,.0f} GB a device ("
                f"{self.engine.memory_share(self.options['memory_frac'])}); the largest batch that fits is "
                f"{self.largest_batch:,}"
            )
        box = self.options["interconnect"] if self.num_devices > 1 else None
        joined = "" if box is None else f" ({box})"
        lines = [
            f"{self.model_name} on {self.num_devices} x {self.arch_name}{joined}, {self.batch:,} "
            f"sequence{'s' * (self.batch > 1)} of {self.prompt_len:,} + {self.output_len:,} tokens:",
            f"TTFT {time_text(self.ttft_us)} (one prompt, no queueing), TPOT {time_text(self.tpot_us)}, one request "
            f"{time_text(self.request_us)};",
            f"80% of measured times are expected within {_words(self.ttft_interval_us)} (TTFT) and "
            f"{_words(self.tpot_interval_us)} (TPOT);",
            f"{self.decode_tokens_per_s_per_device:,.0f} tokens/s/device in decode, "
            f"{self.tokens_per_s_per_device:,.0f} with the time of prompts;",
            f"{held}.",
        ]
        lines += [f"{step.phase}: {_shares(step)}." for step in (self.prefill, self.decode)]
        lines.append(str(self.basis))
        if self.engine != IDEAL:
            lines.append(self.engine.explain())
        return "\n".join([*lines, *self.assumptions])

    @property
    def basis(self) -> Basis:
        """The engine, the libraries of its kernels, and shares of the time of both steps by source."""
        return Basis.of(self.engine, self.prefill, self.decode)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences on what the estimate takes for granted where no option says otherwise."""
        sentences = []
        gemms = [(c.operation.name, c.operation.work) for c in self.decode.costs if c.operation.kind == "gemm"]
        narrow = [(name, work) for name, work in gemms if isinstance(work, GemmWork) and work.quantize_from is not None]
        if narrow and self.options["separate_quantization"] is not None:  # None: multi-core chips, no model of it
            fused = dict.fromkeys(name for name, work in narrow if work.is_quantized)
            apart = dict.fromkeys(name for name, work in narrow if not work.is_quantized)
            parts = [f"by the kernel before for {', '.join(fused)}"] if fused else []
            parts += [f"by kernels of their own for {', '.join(apart)}"] if apart else []
            sentences.append(f"Activations are quantized {', '.join(parts)}.")
        if self.has_expanded_weights:
            sentences.append(
                f"{self.arch_name} does not multiply a type of this checkpoint: its weights are stored as published "
                "and expanded to the type of activations, or stored in that type where nothing expands them."
            )
        if self.num_devices > self.num_joined_devices:
            sentences.append(
                f"{self.num_devices} devices lie in nodes of {self.num_joined_devices}: collectives between nodes "
                "use the network of the arch, which no timing covers."
            )
        return tuple(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: figures first, steps last."""
        data = Result.to_dict(self) | {"assumptions": list(self.assumptions)}
        for name in ("memory", "assumptions", "basis", "engine", "options", "prefill", "decode"):
            data[name] = data.pop(name)
        return data


def _shares(step: StepEstimate) -> str:
    us_by_kind = step.us_by_kind | {"host": step.host_us}
    total = sum(us_by_kind.values())
    parts = [f"{kind} {us / total:.0%}" for kind, us in us_by_kind.items() if us > 0]
    return ", ".join(parts)


_MAX_GUESSES = 64
_MAX_WORKERS = 256
_CHUNK_POINTS = 250  # that a worker is handed at once


@suggests_names
def estimate_model(
    model: ModelConfig | str | os.PathLike[str], arch: ArchSpec | GEMMEvaluator | str | os.PathLike[str],
    batch: int = 1, *, prompt_len: int = 1024, output_len: int = 256, tensor_parallel: int = 1,
    pipeline_parallel: int = 1, expert_parallel: int = 1, dtype: str | None = None, dense_dtype: str | None = None,
    expert_dtype: str | None = None, kv_dtype: str | None = None, chunk_tokens: int | None = None,
    speculative_tokens: int = 0, acceptance: float = 0.7, expert_load: str | Distribution = "uniform",
    fusions: Fusions | None = None, fused: bool | None = None, attention_library: str | None = None,
    collective_library: str | None = None, expert_library: str | None = None, interconnect: str | None = None,
    memory_frac: float | None = None, ignore_memory: bool = False, engine: Engine | str | os.PathLike[str] = IDEAL,
) -> ModelEstimate:  # fmt: skip
    """Say what a model does on an arch: how soon, how fast, and whether it fits.

    >>> estimate_model("llama-3-8b", "h200-sxm", 32, prompt_len=2048)     # doctest: +SKIP

    A step is the sum of its operations, one after the other in a CUDA graph, as engines run them: GEMMs, attention,
    experts, collectives, and what is bound by memory; GEMMs and attention with what they take more between
    others than alone (`GEMMEvaluator.switch_us`). The time that the GPU waits for the host is the engine's, none of the
    ideal engine; sampling parameters and the network to clients are not in it.

    Args:
        model: a config, the name of a preset, or a Hugging Face config.json.
        arch: a device; or an evaluator, whose options GEMMs then have, before those of the engine.
        batch: sequences that a replica decodes together; with experts over more devices than `tensor_parallel`, of each
            of its tensor-parallel groups. Pipeline stages work on `pipeline_parallel` parts of it at once.
        prompt_len, output_len: tokens of each sequence.
        tensor_parallel, pipeline_parallel, expert_parallel: degrees. Devices lie side by side in nodes of as many as
            the link of the arch joins; between nodes messages take its network, which `explain()` says.
        dtype, dense_dtype, expert_dtype: as for `transformer_gemms`; None: as the model's file says.
        kv_dtype: of the KV cache; None: as the file says, else the type of activations.
        chunk_tokens: of a prompt in one step of prefill, at most; None: as the engine has it.
        speculative_tokens: tokens that are guessed and verified in each step of decode; what guesses them is not
            counted.
        acceptance: share of guesses that hold, each only if those before it do.
        expert_load: rows of each expert; see `transformer_gemms`.
        fusions: which operations run as one kernel; None: those of the engine; of the ideal one all, so that
            activations of narrow GEMMs are quantized in the norm, activation or attention before
            (`Fusions(quantization=False)`: by a kernel of its own before each GEMM).
        fused: attention; see `GEMMEvaluator.evaluate_attention`.
        attention_library, collective_library, expert_library: whose kernels of attention, messages and experts; None:
            those of the engine.
        interconnect: how a server joins GPUs over PCIe (`GEMMEvaluator.evaluate_collective`); other GPUs keep their
            link. None: as the spec says.
        memory_frac: share of the DRAM that may be used, in the words of the engine (`MemoryShare`): vLLM's
            gpu_memory_utilization, SGLang's mem_fraction_static, TensorRT-LLM's free_gpu_memory_fraction; None: that
            of the engine.
        ignore_memory: go on where the model does not fit.
        engine: serving engine (`gemm_eval.estimate.Engine`, a name of `list_engines()`, or a YAML file); ``"ideal"``
            is the sum of the kernels.

    Raises:
        InfeasibleError: it does not fit; the error names each change that would do, with its figure; or no mapping
            of a GEMM does.
        InvalidOptionError, InvalidProblemError: an option out of its range, or not for this model.
        ModelConfigError, ArchError: no such model or arch.
        UnsupportedError: the arch cannot run a type, or says nothing of the link between its devices; or the engine is
            not known on it.
    """  # fmt: skip
    replica = Replica(
        model, arch, tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel,
        expert_parallel=expert_parallel, dtype=dtype, dense_dtype=dense_dtype, expert_dtype=expert_dtype,
        kv_dtype=kv_dtype, chunk_tokens=chunk_tokens, expert_load=expert_load, fusions=fusions, fused=fused,
        attention_library=attention_library, collective_library=collective_library, expert_library=expert_library,
        interconnect=interconnect, memory_frac=memory_frac, engine=engine,
    )  # fmt: skip
    chunk_tokens = replica.chunk_tokens
    sizes = {"batch": batch, "prompt_len": prompt_len, "output_len": output_len, "chunk_tokens": chunk_tokens}
    asked: dict[str, Any] = {name: as_integer(name, value, 1, MAX_DIM) for name, value in sizes.items()}
    asked["speculative_tokens"] = speculative_tokens
    check_flag("ignore_memory", ignore_memory)
    tokens = tokens_per_step(speculative_tokens, acceptance)
    held = (batch, prompt_len + output_len)
    memory = replica.memory(*held) if ignore_memory else replica.check_memory(*held, output_len)
    limit = replica.memory_limit
    ends = (*range(chunk_tokens, prompt_len, chunk_tokens), prompt_len)
    chunks = [StepSize("prefill", 1, end - start, end) for start, end in zip((0, *ends[:-1]), ends, strict=True)]
    num_parts = min(pipeline_parallel, batch)  # of the batch, each in another stage
    new = speculative_tokens + 1
    context = prompt_len + max(1, output_len // 2)  # in the middle of the output
    *prefill, decode = replica.steps([*chunks, StepSize("decode", -(-batch // num_parts), new, context + new - 1)])
    chunk_us = [chunk.stage_us for chunk in prefill]
    step_us = max(decode.latency_us, num_parts * max(decode.stage_us))  # in which all parts pass all stages
    host_us = sum(chunk.host_us for chunk in prefill) + replica.engine.request_us
    return ModelEstimate(
        model_name=replica.config.name, arch_name=replica.arch.name, batch=batch, prompt_len=prompt_len,
        output_len=output_len, num_devices=replica.num_devices, num_groups=replica.num_groups,
        ttft_us=pipeline_us(chunk_us) + host_us, tpot_us=step_us / tokens, tokens_per_step=tokens,
        prompt_stage_us=tuple(map(sum, zip(*chunk_us, strict=True))), prefill=prefill[-1], decode=decode,
        memory=memory, memory_limit_bytes=None if limit is None else limit(memory),
        num_joined_devices=num_joined(replica.arch), has_expanded_weights=replica.has_expanded_weights,
        engine=replica.engine,
        options=FrozenDict(asked | {"acceptance": acceptance} | replica.options), _config=replica.config, _limit=limit,
        _held=FrozenDict(replica.held | {"seq_len": prompt_len + output_len}),
    )  # fmt: skip


def tokens_per_step(speculative_tokens: int, acceptance: float) -> float:
    """Return the expected tokens that a sequence gains in a step: accepted guesses, and one.

    A guess holds with the probability `acceptance`, if those before it do. InvalidOptionError: one is out of range.
    """
    guesses = as_integer("speculative_tokens", speculative_tokens, 0, _MAX_GUESSES)
    share = plain_number(acceptance)
    if share is None or not 0 <= share <= 1:
        raise InvalidOptionError(f"acceptance must be in 0..1, got {shown(acceptance)}")
    return sum(share**index for index in range(guesses + 1))


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
    evaluators = [evaluator_of(arch) for arch in archs]
    configs = [model if isinstance(model, ModelConfig) else load_model(model) for model in models]
    points = list(product(evaluators, configs, list(batches), list(prompt_lens)))
    if workers == 1:
        for point in points:
            yield from _estimate_some([point], options)
        return
    size = max(1, min(_CHUNK_POINTS, -(-len(points) // workers)))
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for result in pool.map(partial(_estimate_some, options=options), chunks):
            yield from result


def _estimate_some(
    points: Sequence[tuple[GEMMEvaluator, ModelConfig, int, int]], options: dict[str, Any]
) -> list[ModelEstimate]:
    """Price a chunk in a worker process, which makes its evaluators anew and shares one within a chunk."""
    return [
        estimate_model(config, evaluator, batch, prompt_len=prompt_len, **options)
        for evaluator, config, batch, prompt_len in points
    ]
