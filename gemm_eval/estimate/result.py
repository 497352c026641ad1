"""Estimates of a model on an arch: `StepEstimate` for one step, `ModelEstimate` for a whole request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gemm_eval.estimate.price import OperationCost
from gemm_eval.evaluate import Result
from gemm_eval.frozen import FrozenDict
from gemm_eval.transformer import GemmWork, ModelConfig, ModelMemory, largest_batch
from gemm_eval.units import time_text

KINDS = ("gemm", "attention", "moe", "memory", "collective")
"""Kinds of operations, in the order in which they are shown."""

_US_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """A step: a chunk of prompts, or tokens of a batch in decode.

    `seq_len` counts the positions of each sequence, the `new_tokens` included. `stages` are the operations of each
    pipeline stage, on one of its devices.
    """

    phase: str
    batch: int
    new_tokens: int
    seq_len: int
    stages: tuple[tuple[OperationCost, ...], ...]

    @property
    def stage_us(self) -> tuple[float, ...]:
        """Time of each stage."""
        return tuple(sum(cost.total_us for cost in stage) for stage in self.stages)

    @property
    def latency_us(self) -> float:
        """Time of the step through all stages."""
        return sum(self.stage_us)

    @property
    def us_by_kind(self) -> dict[str, float]:
        """Time of the step by kind of operation, through all stages."""
        total = dict.fromkeys(KINDS, 0.0)
        for cost in self.costs:
            total[cost.operation.kind] += cost.total_us
        return total

    @property
    def costs(self) -> tuple[OperationCost, ...]:
        """Operations of all stages."""
        return tuple(cost for stage in self.stages for cost in stage)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        names = ("phase", "batch", "new_tokens", "seq_len", "latency_us", "stage_us", "us_by_kind")
        stages = [[cost.to_dict() for cost in stage] for stage in self.stages]
        return {name: getattr(self, name) for name in names} | {"stages": stages}


@dataclass(frozen=True, slots=True)
class ModelEstimate(Result):
    """A model on an arch: how long until the first token, how long for each after it, how many a second, does it fit.

    Attributes:
        batch: sequences that are decoded together on a replica: a group of `num_devices` devices.
        num_groups: of data-parallel attention in it, where experts are spread over more devices than a tensor-parallel
            group has; each has `batch` sequences.
        ttft_us: time to first token of one prompt alone: its chunks follow each other through the stages, and each
            stage works on one chunk at a time (`gemm_eval.estimate.model.pipeline_us`).
        tpot_us: time per output token of a sequence, in the middle of its output; with speculation the time of a
            step over the tokens that it gives.
        prompt_stage_us: time that each pipeline stage works on one prompt, over all of its chunks.
        tokens_per_step: of a sequence: 1, or with speculation what is accepted, and one.
        prefill, decode: the steps behind both; of a prompt in chunks the last one.
        memory: what the device that holds most holds, with all sequences at their full length.
        memory_limit_bytes: what may be held; None: the arch does not say its DRAM.
        num_joined_devices: devices that the link of the arch joins; messages of pipeline stages on more take as long.
        has_expanded_weights: the arch does not multiply a type of the checkpoint, whose weights are expanded first
            (`gemm_eval.transformer.model_on`).
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
    options: FrozenDict[str, Any]
    _config: ModelConfig = field(repr=False, compare=False)
    _held: FrozenDict[str, Any] = field(repr=False, compare=False)
    _derived: ClassVar[tuple[str, ...]] = (
        "request_us", "decode_tokens_per_s", "decode_tokens_per_s_per_device", "tokens_per_s_per_device", "fits",
        "largest_batch",
    )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<ModelEstimate {self.model_name} on {self.num_devices} x {self.arch_name}: first token "
            f"{time_text(self.ttft_us)}, then {time_text(self.tpot_us)} each, "
            f"{self.decode_tokens_per_s_per_device:,.0f} tokens/s a device>"
        )

    @property
    def request_us(self) -> float:
        """Time of a request: its first token, and all others."""
        return self.ttft_us + (self.output_len - 1) * self.tpot_us

    @property
    def decode_tokens_per_s(self) -> float:
        """Output tokens a second of the replica while it only decodes."""
        return self.batch * self.num_groups / self.tpot_us * _US_PER_S

    @property
    def decode_tokens_per_s_per_device(self) -> float:
        """Output tokens a second of a device while it only decodes."""
        return self.decode_tokens_per_s / self.num_devices

    @property
    def tokens_per_s_per_device(self) -> float:
        """Output tokens a second of a device in the long run: each sequence's prompt takes its time too."""
        # prompts follow each other without a gap, so that each takes the time of its slowest stage
        cycle_us = self.batch * max(self.prompt_stage_us) + self.output_len * self.tpot_us
        return self.batch * self.num_groups * self.output_len / cycle_us * _US_PER_S / self.num_devices

    @property
    def fits(self) -> bool | None:
        """True if a device holds the model; None: the arch does not say its DRAM."""
        return None if self.memory_limit_bytes is None else self.memory.total_bytes <= self.memory_limit_bytes

    @property
    def largest_batch(self) -> int | None:
        """The most sequences that fit, 0: not one; None: the arch does not say its DRAM."""
        if self.memory_limit_bytes is None:
            return None
        return largest_batch(self._config, self.memory_limit_bytes, **self._held)

    def explain(self) -> str:
        """Return a short text: the figures that are asked for, and where the time goes."""
        held = f"{self.memory.total_bytes / 1e9:,.1f} GB a device"
        if self.memory_limit_bytes is not None:
            held = (
                f"{self.memory.total_bytes / 1e9:,.1f} of {self.memory_limit_bytes / 1e9:,.0f} GB a device ("
                f"{self.options['memory_frac']:g} of its memory); the largest batch that fits is {self.largest_batch:,}"
            )
        box = self.options["interconnect"] if self.num_devices > 1 else None
        joined = "" if box is None else f" ({box})"
        lines = [
            f"{self.model_name} on {self.num_devices} x {self.arch_name}{joined}, {self.batch:,} sequences of "
            f"{self.prompt_len:,} + {self.output_len:,} tokens:",
            f"first token {time_text(self.ttft_us)} (a prompt alone), then {time_text(self.tpot_us)} a token, a "
            f"request {time_text(self.request_us)};",
            f"{self.decode_tokens_per_s_per_device:,.0f} tokens/s a device in decode, "
            f"{self.tokens_per_s_per_device:,.0f} with the prompts' time;",
            f"{held}.",
        ]
        lines += [f"{step.phase}: {_shares(step.us_by_kind)}." for step in (self.prefill, self.decode)]
        return "\n".join([*lines, *self.assumptions])

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences on what the estimate takes for granted where no option says otherwise."""
        sentences = []
        gemms = [(c.operation.name, c.operation.work) for c in self.decode.costs if c.operation.kind == "gemm"]
        narrow = [(name, work) for name, work in gemms if isinstance(work, GemmWork) and work.quantize_from is not None]
        if narrow and self.memory_limit_bytes is not None:  # multi-core chips have no model of quantization
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
                f"{self.num_devices} devices are more than the {self.num_joined_devices} that their link joins: "
                "messages between pipeline stages are taken to be as fast as this link."
            )
        return tuple(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON: figures first, steps last."""
        data = Result.to_dict(self) | {"assumptions": list(self.assumptions)}
        for name in ("memory", "assumptions", "options", "prefill", "decode"):
            data[name] = data.pop(name)
        return data


def _shares(us_by_kind: Mapping[str, float]) -> str:
    total = sum(us_by_kind.values())
    parts = [f"{kind} {us / total:.0%}" for kind, us in us_by_kind.items() if us > 0]
    return ", ".join(parts)
