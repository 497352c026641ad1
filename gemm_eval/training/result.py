"""`TrainingEstimate`, the answer on a training step, and the FLOP that its utilization is measured by."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from gemm_eval.evaluate import Result
from gemm_eval.frozen import FrozenDict
from gemm_eval.training.schedule import StageTimes
from gemm_eval.training.step import KINDS, TrainingMemory
from gemm_eval.transformer import GROUPS, GroupedAttention, Layout, ModelConfig, count_parameters
from gemm_eval.units import FLOP_PER_MAC, per_s, time_text
from gemm_eval.workload import AttentionProblem

HOST_FRAC = 0.12
"""Share by which a step takes longer where a host starts its kernels: 90% of the 12 steps measured on an H100, without
a CUDA graph and with (arch/measured/h100-sxm/training/steps.csv)."""

DEFINITIONS = {
    "tokens_per_s_per_device": "tokens of a step over its time and the number of devices",
    "mfu_frac": "model FLOP over time x devices x peak of the GEMMs' type; 6 FLOP a token for each parameter that it "
    "meets in a GEMM, and 3 passes of attention over the pairs that its mask leaves",
    "palm_mfu_frac": "MFU with all pairs of queries and keys",
    "hfu_frac": "MFU with the forward pass of layers that full recomputation runs again",
    "low_us": "80% of measured steps are expected from low_us to high_us: kernels by their intervals, collectives "
    "whose overlap is not given all beside computation or none, and a host that starts kernels one by one",
    "sources": "share of computation by the source of its kernels' times",
}
"""Definitions of the figures, in words."""

_S_PER_DAY = 86_400
_PASSES = 3  # forward, and two gradients

BREAKDOWN = (*KINDS, "recompute", *GROUPS, "dp", "bubble", "optimizer")
"""Terms of a step: kinds of computation, exposed collectives by group of devices, idle time, and the optimizer."""

_MEANINGS = {
    "gemm": "GEMMs, forward and both gradients", "attention": "attention, forward and backward",
    "memory": "norms, activations, loss, casts, main gradients", "recompute": "what the backward pass computes again",
    "tp": "exposed collectives of tensor parallelism", "cp": "exposed collectives of context parallelism",
    "ep": "exposed collectives of expert parallelism", "pp": "exposed sends of pipeline parallelism",
    "dp": "exposed gradients and weights of data parallelism", "bubble": "waiting for other pipeline stages",
    "optimizer": "the optimizer's step",
}  # fmt: skip


@lru_cache(maxsize=1024)
def model_flop(config: ModelConfig, seq_len: int, *, is_full: bool = False) -> int:
    """Return the FLOP that training on one sequence takes at least: three passes, six for each parameter of a GEMM.

    Parameters are those that a token meets: attention, feed-forward networks, its experts, routers and the LM head;
    embeddings are looked up. Attention counts pairs of queries and keys that its mask leaves; `is_full`: all pairs, 12
    for each layer, element of all heads and pair, as PaLM's MFU has it (Chowdhery et al. 2022, appendix B,
    https://arxiv.org/abs/2204.02311).
    """
    counts, attention = count_parameters(config), config.attention
    used = counts.layer_matrices - counts.idle_experts + config.vocab_size * config.hidden_size
    flop = _PASSES * FLOP_PER_MAC * used * seq_len
    if isinstance(attention, GroupedAttention):
        kv_heads, size, value = attention.num_kv_heads, attention.head_dim, attention.head_dim
        window = attention.window_size
    else:
        kv_heads, size = attention.num_heads, attention.qk_nope_head_dim + attention.qk_rope_head_dim
        value, window = attention.v_head_dim, None
    in_window = 0 if is_full else config.num_window_layers
    for num, of in ((config.num_layers - in_window, None), (in_window, window)):
        if not num:
            continue
        whole = AttentionProblem(
            1, seq_len, seq_len, attention.num_heads, kv_heads, size, v_head_dim=value, causal=not is_full, window=of
        )
        flop += num * _PASSES * whole.flop
    return flop


def layers_flop(config: ModelConfig, seq_len: int) -> int:
    """Return `model_flop` without the LM head, which full recomputation does not run again."""
    return model_flop(config, seq_len) - _PASSES * FLOP_PER_MAC * config.vocab_size * config.hidden_size * seq_len


class StageStep(NamedTuple):
    """Times of a pipeline stage in us: passes of a microbatch, messages exposed in them, and what follows the last."""

    forward_us: float
    dgrad_us: float
    wgrad_us: float
    messages_us: float
    data_us: float
    optimizer_us: float

    @property
    def times(self) -> StageTimes:
        """The passes of a microbatch."""
        return StageTimes(*self[:3])

    @property
    def messages_frac(self) -> float:
        """Share of all passes that are exposed messages."""
        return self.messages_us / self.times.total_us


@dataclass(frozen=True, slots=True)
class TrainingEstimate(Result):
    """A training step of a model on a layout of devices of one arch.

    Attributes:
        layout: degrees of parallelism.
        global_batch, micro_batch: sequences of a step, and of one microbatch.
        num_microbatches: of each pipeline in a step.
        latency_us: time of the step; 80% of measured times are expected within `low_us` to `high_us` (`DEFINITIONS`).
        breakdown: microseconds by term (`BREAKDOWN`) of the slowest pipeline stage; they add up to `latency_us`.
        stages: times of each pipeline stage.
        mfu_frac: model FLOP utilization: `model_flop` of the step over its time at the peak of all devices for the type
            of GEMMs. Masked pairs of attention are no work, so that it is below 1.
        palm_mfu_frac: the same with all pairs of queries and keys, as PaLM's formula counts them.
        hfu_frac: hardware FLOP utilization: with what full recomputation runs again.
        memory: what the device that holds most holds.
        memory_limit_bytes: what may be held; None: the arch does not say its DRAM.
        sources: shares of computation by source: ``corrected``, ``calibrated``, ``analytic``, ...
        libraries: kernel libraries of GEMMs, attention and collectives; nothing on a multi-core chip.
        options: what was asked, by name.
    """

    model_name: str
    arch_name: str
    layout: Layout
    num_devices: int
    global_batch: int
    micro_batch: int
    num_microbatches: int
    seq_len: int
    latency_us: float
    low_us: float
    high_us: float
    breakdown: FrozenDict[str, float]
    stages: tuple[StageStep, ...]
    mfu_frac: float
    palm_mfu_frac: float
    hfu_frac: float
    memory: TrainingMemory
    memory_limit_bytes: int | None
    sources: FrozenDict[str, float]
    libraries: FrozenDict[str, str]
    options: FrozenDict[str, Any]
    _derived: ClassVar[tuple[str, ...]] = (
        "bound", "source", "tokens_per_s", "tokens_per_s_per_device", "tokens_per_day", "fits",
    )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<TrainingEstimate {self.model_name} on {self.num_devices} x {self.arch_name} ({self.layout}): "
            f"{time_text(self.latency_us)} a step, {self.tokens_per_s_per_device:,.0f} tokens/s a device, "
            f"MFU {self.mfu_frac:.1%}>"
        )

    @property
    def bound(self) -> str:
        """The largest term."""
        return max(self.breakdown, key=lambda name: self.breakdown[name])

    @property
    def source(self) -> str:
        """``analytic``: a sum of operations that no step was fitted on."""
        return "analytic"

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of all devices."""
        return per_s(self.global_batch * self.seq_len, self.latency_us)

    @property
    def tokens_per_s_per_device(self) -> float:
        """Tokens a second of one device."""
        return self.tokens_per_s / self.num_devices

    @property
    def tokens_per_day(self) -> float:
        """Tokens a day of all devices, without interruptions."""
        return self.tokens_per_s * _S_PER_DAY

    @property
    def fits(self) -> bool | None:
        """True if each device holds its share; None: the arch does not say its DRAM."""
        return None if self.memory_limit_bytes is None else self.memory.total_bytes <= self.memory_limit_bytes

    def explain(self) -> str:
        """Return a short text: the figures that are asked for, where the time goes, and what is held."""
        memory = self.memory
        held = f"{memory.total_bytes / 1e9:,.1f} GB a device"
        if self.memory_limit_bytes is not None:
            held += f" of {self.memory_limit_bytes / 1e9:,.0f} that may be used"
        lines = [
            f"{self.model_name} on {self.num_devices:,} x {self.arch_name} ({self.layout}), {self.global_batch:,} "
            f"sequences of {self.seq_len:,} tokens in {self.num_microbatches:,} microbatches of {self.micro_batch}:",
            f"{time_text(self.latency_us)} a step, {self.tokens_per_s_per_device:,.0f} tokens/s a device, "
            f"{self.tokens_per_day / 1e9:,.3g} billion tokens a day;",
            f"MFU {self.mfu_frac:.1%} ({self.palm_mfu_frac:.1%} by PaLM's formula), HFU {self.hfu_frac:.1%} of the "
            f"{self.options['dtype']} peak;",
            f"80% of measured times are expected within {time_text(self.low_us)} to {time_text(self.high_us)}; "
            f"computation rests on {', '.join(f'{source} {share:.0%}' for source, share in self.sources.items())}; "
            f"kernels: {', '.join(f'{kind} {name}' for kind, name in self.libraries.items()) or 'best mappings'}.",
            *(
                f"  {name:10} {time_text(us):>9} {us / self.latency_us:>5.0%}  {_MEANINGS[name]}"
                for name, us in self.breakdown.items()
                if us > 0
            ),
            f"{held}: weights {memory.weight_bytes / 1e9:,.1f}, gradients {memory.gradient_bytes / 1e9:,.1f}, main "
            f"weights {memory.main_bytes / 1e9:,.1f}, moments {memory.moment_bytes / 1e9:,.1f}, activations "
            f"{memory.activation_bytes / 1e9:,.1f}.",
            *(f"{name}: {DEFINITIONS[name]}." for name in ("mfu_frac", "hfu_frac")),
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return Result.to_dict(self) | {"definitions": dict(DEFINITIONS)}
