"""Laws of whole models on GPUs, on random small models, GPUs, types, degrees, batches and prompts.

Times, rates and bytes are finite and add up. A token more in the prompt is never sooner, nor is a sequence more; twice
the sequences take at most twice as long; tensor-parallel groups and pipeline stages never beat perfect scaling; fp8 is
never slower than bf16 in decode; a kernel that quantizes costs time; memory grows with what is held.

An estimate is a sum of operations, whose own laws are checked elsewhere (`physics`, `attention`, ...). So a miss is
explained where operations of the two steps miss the law by as much on their own; it is counted with its ratio, which
must stay below a limit. What the sum adds to it (chunks, stages, parts of a batch) is a violation.
"""

import math
import random
from collections.abc import Callable
from typing import Any

from gemm_eval import GemmEvalError, GEMMEvaluator, ModelEstimate, estimate_model
from gemm_eval.arch import GFX_ARCHS, GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.estimate import StepEstimate
from gemm_eval.transformer import Fusions, GroupedAttention, LatentAttention, ModelConfig
from tools.laws.draws import GPUS
from tools.laws.report import Report

ROUNDING = 1e-9
LIMIT = 0.3
"""Largest share by which operations on their own may miss a law: steps of tiles, waves and choices of kernels."""

_CASES = 25  # of one GPU and model
_DEGREES = (2, 4, 8)
_JOINED = tuple(arch for arch in GPUS if arch.interconnect is not None and arch.interconnect.num_gpus >= max(_DEGREES))


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random estimates, rounded up."""
    rng, report = random.Random(seed), Report()
    for start in range(0, count, _CASES):
        arch = rng.choice(_JOINED)
        config = draw_model(rng, has_latents=arch.sm_arch != GFX_ARCHS[0])
        evaluator = GEMMEvaluator(arch, disk_cache=False)
        for _ in range(min(_CASES, count - start)):
            _Case(evaluator, config, rng, report).check()
    return report


def draw_model(rng: random.Random, *, has_latents: bool = True) -> ModelConfig:
    """A dense model of some layers, whose heads and widths eight devices can divide.

    `has_latents`: attention may be on latents, which the first of AMD's generations has no model of.
    """
    head_dim, num_kv_heads = rng.choice((64, 128)), rng.choice((8, 16))
    attention: GroupedAttention | LatentAttention = GroupedAttention(
        num_heads=num_kv_heads * rng.choice((1, 4, 8)), num_kv_heads=num_kv_heads, head_dim=head_dim
    )
    if rng.random() < 0.2 and has_latents:
        attention = LatentAttention(
            num_heads=rng.choice((16, 64, 128)), q_lora_rank=rng.choice((None, 1536)), kv_lora_rank=512,
            qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        )  # fmt: skip
    return ModelConfig(
        name="drawn",
        hidden_size=rng.choice((1024, 2048, 4096, 8192)),
        num_layers=rng.choice((8, 12, 17)),
        vocab_size=rng.choice((32_000, 128_256)),
        attention=attention,
        ffn={"intermediate_size": rng.choice((4096, 14_336, 28_672)), "is_gated": rng.random() < 0.8},  # type: ignore[arg-type]
        tied_embeddings=rng.random() < 0.3,
        norms_per_layer=rng.choice((1, 2, 2, 4)),
        dtype=DType.BF16,
    )


class _Case:
    """A question, and the changes of its answer with those of the question."""

    def __init__(self, evaluator: GEMMEvaluator, config: ModelConfig, rng: random.Random, report: Report) -> None:
        self.evaluator, self.config, self.rng, self.report = evaluator, config, rng, report
        assert isinstance(evaluator.arch, GpuSpec)
        self.types = [dtype for dtype in (DType.BF16, DType.FP16) if dtype in evaluator.arch.tensor_flop_per_cycle]
        narrow = [dtype for dtype in (DType.FP8, DType.INT8) if dtype in evaluator.arch.tensor_flop_per_cycle]
        chunk, tensor_parallel = rng.choice((64, 256, 1024)), rng.choice((1, 1, 2, 8))
        link = evaluator.arch.interconnect
        is_joined = link is None or link.network is not None
        most = 8 if is_joined or link is None else link.num_gpus // tensor_parallel
        self.asked: dict[str, Any] = {
            "batch": rng.choice((1, 2, 7, 16, 64, 200)),
            "prompt_len": max(1, chunk * rng.randint(0, 3) + rng.randint(-1, 1)),
            "output_len": rng.choice((1, 64)),
            "chunk_tokens": chunk,
            "tensor_parallel": tensor_parallel,
            "pipeline_parallel": rng.choice([num for num in (1, 2, 3, 8) if num <= most]),
            "dtype": str(rng.choice([*self.types, *narrow])),
            "ignore_memory": True,
        }
        self.narrow = narrow

    def ask(self, **changes: Any) -> ModelEstimate:
        options = self.asked | changes
        return estimate_model(self.config, self.evaluator, options.pop("batch"), **options)

    def check(self) -> None:
        try:
            base = self.ask()
        except GemmEvalError as error:
            self.report.violations.append(f"is answered: {self}: {error}")
            return
        self.sums(base)
        checks: tuple[Callable[[ModelEstimate], None], ...] = (
            self.token_more, self.sequence_more, self.twice_the_sequences, self.tensor_parallel, self.stages,
            self.fp8, self.quantization,
        )  # fmt: skip
        self.rng.choice(checks)(base)

    def sums(self, base: ModelEstimate) -> None:
        law = "times, rates and bytes are finite and add up"
        self.report.checked[law] += 1
        figures = (
            base.ttft_us, base.tpot_us, base.request_us, base.decode_tokens_per_s, base.tokens_per_s_per_device,
            *(cost.latency_us for step in (base.prefill, base.decode) for cost in step.costs),
        )  # fmt: skip
        at_most_us = sum(base.prompt_stage_us)
        steps = (base.prefill, base.decode)
        is_sum = all(math.isclose(sum(step.us_by_kind.values()), step.latency_us) for step in steps)
        is_within = max(base.prompt_stage_us) <= base.ttft_us * (1 + ROUNDING) <= at_most_us * (1 + 3 * ROUNDING)
        is_held = base.memory.total_bytes > 0 and base.tokens_per_s_per_device <= base.decode_tokens_per_s_per_device
        if not (all(math.isfinite(us) and us >= 0 for us in figures) and is_sum and is_within and is_held):
            self.report.violations.append(f"{law}: {self}: {figures[:5]}, {base.prompt_stage_us}, {base.memory}")

    def token_more(self, base: ModelEstimate) -> None:
        more = self.ask(prompt_len=self.asked["prompt_len"] + 1)
        is_new_chunk = self.asked["prompt_len"] % self.asked["chunk_tokens"] == 0
        own_us = 0.0 if is_new_chunk else _own(more.prefill, base.prefill, 1.0)
        self.holds("a token more is not sooner", more.ttft_us - base.ttft_us, own_us, base.ttft_us)
        self.grows(base, more)

    def sequence_more(self, base: ModelEstimate) -> None:
        more = self.ask(batch=self.asked["batch"] + self.asked["pipeline_parallel"])
        own_us = _own(more.decode, base.decode, 1.0) * self.asked["pipeline_parallel"]
        self.holds("a sequence more is not faster", more.tpot_us - base.tpot_us, own_us, base.tpot_us)
        self.grows(base, more)

    def twice_the_sequences(self, base: ModelEstimate) -> None:
        more = self.ask(batch=2 * self.asked["batch"])
        own_us = _own(base.decode, more.decode, 2.0) * self.asked["pipeline_parallel"]
        self.holds(
            "twice the sequences take at most twice as long", 2 * base.tpot_us - more.tpot_us, own_us, 2 * base.tpot_us
        )

    def tensor_parallel(self, _: ModelEstimate) -> None:
        degree = self.rng.choice(_DEGREES)
        alone, group = (self.ask(tensor_parallel=num, pipeline_parallel=1) for num in (1, degree))
        law = "tensor parallelism is at most perfect scaling"
        for step, other in ((alone.prefill, group.prefill), (alone.decode, group.decode)):
            margin_us = degree * other.latency_us - step.latency_us
            self.holds(law, margin_us, _own_by_name(other, step, degree), step.latency_us)

    def stages(self, base: ModelEstimate) -> None:
        num = self.asked["pipeline_parallel"]
        alone, law = self.ask(pipeline_parallel=1), "stages are at most perfect scaling"
        own_us = _own_by_name(base.decode, alone.decode, num)
        self.holds(law, num * base.tpot_us - alone.tpot_us, own_us, alone.tpot_us)
        self.holds(law, num * base.ttft_us - alone.ttft_us, 0.0, alone.ttft_us)
        self.holds(law, sum(base.prompt_stage_us) - alone.ttft_us, 0.0, alone.ttft_us)

    def fp8(self, _: ModelEstimate) -> None:
        if DType.FP8 not in self.narrow:
            return
        wide, narrow = self.ask(dtype="bf16"), self.ask(dtype="fp8")
        own_us = _own(wide.decode, narrow.decode, 1.0) * self.asked["pipeline_parallel"]
        self.holds("fp8 is not slower in decode", wide.tpot_us - narrow.tpot_us, own_us, wide.tpot_us)

    def quantization(self, base: ModelEstimate) -> None:
        apart = self.ask(fusions=Fusions(quantization=False))
        own_us = _own(apart.decode, base.decode, 1.0) * self.asked["pipeline_parallel"]
        self.holds("a kernel that quantizes costs time", apart.tpot_us - base.tpot_us, own_us, base.tpot_us)

    def grows(self, less: ModelEstimate, more: ModelEstimate) -> None:
        law = "memory grows with what is held"
        self.report.checked[law] += 1
        if more.memory.total_bytes < less.memory.total_bytes:
            self.report.violations.append(f"{law}: {self}")

    def holds(self, law: str, margin_us: float, own_us: float, of_us: float) -> None:
        """Count a law that says `margin_us` >= 0, where operations miss it by `own_us` on their own."""
        self.report.checked[law] += 1
        missed = -margin_us / of_us
        if missed <= ROUNDING:
            return
        if missed <= own_us / of_us + ROUNDING and missed <= LIMIT:
            self.report.except_(f"{law}: operations on their own", missed)
        else:
            self.report.violations.append(f"{law}: {self}: missed by {missed:.4f}, on their own {own_us / of_us:.4f}")

    def __str__(self) -> str:
        return f"{self.evaluator.arch.name} {self.config.model_dump(exclude_none=True)} {self.asked}"


def _own(larger: StepEstimate, smaller: StepEstimate, factor: float) -> float:
    """Return by how much operations of the step that should take longer (times `factor`) take less on their own."""
    return sum(
        max(0.0, two.total_us - factor * one.total_us) for one, two in zip(larger.costs, smaller.costs, strict=True)
    )


def _own_by_name(larger: StepEstimate, smaller: StepEstimate, factor: float) -> float:
    """Return the same of steps whose operations are divided over devices: all of a name together."""
    totals: dict[str, float] = {}
    for step, sign in ((larger, -factor), (smaller, 1.0)):
        for cost in step.costs:
            totals[cost.operation.name] = totals.get(cost.operation.name, 0.0) + sign * cost.total_us
    return sum(max(0.0, us) for us in totals.values())
