"""Laws of training steps, on random small models (with experts and without), GPUs, layouts, schedules and types.

Terms add up, and lie inside the interval; MFU and HFU are at most 1. Full recomputation adds exactly the forward pass
of the layers, and keeps less. More data parallelism at equal work for each device adds at most its messages. More
memory never makes the best layout slower. A stage of ZeRO never takes more memory than the one before, but for the
weights of two layers at work that ZeRO 3 gathers.
"""

import math
import random
from itertools import pairwise
from typing import Any

from gemm_eval import GEMMEvaluator, InfeasibleError, InvalidOptionError, TrainingEstimate, UnsupportedError
from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.training import RECOMPUTE, estimate_training, find_training_layouts
from gemm_eval.training.step import StepPrices, data_us, stages_of
from gemm_eval.transformer import Layout, ModelConfig, legal_layouts, types_on
from tools.laws.draws import NVIDIA_GPUS
from tools.laws.estimate import draw_model
from tools.laws.report import Report

ROUNDING = 1e-9
_CASES = 20  # of one GPU and model
_JOINED = tuple(
    arch
    for arch in NVIDIA_GPUS
    if arch.interconnect is not None
    and arch.interconnect.network is not None
    and DType.BF16 in arch.tensor_flop_per_cycle
)


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random steps, rounded up."""
    rng, report = random.Random(seed), Report()
    for start in range(0, count, _CASES):
        arch, config = rng.choice(_JOINED), _draw_model(rng)
        evaluator = GEMMEvaluator(arch, disk_cache=False, clock="sustained")
        for _ in range(min(_CASES, count - start)):
            _Case(evaluator, config, rng, report).check()
    return report


def _draw_model(rng: random.Random) -> ModelConfig:
    config = draw_model(rng, has_latents=False)
    if rng.random() < 0.4:
        moe = {
            "num_experts": 16, "experts_per_token": rng.choice((1, 2, 4)), "num_layers": config.num_layers,
            "intermediate_size": rng.choice((512, 2048)),
        }  # fmt: skip
        config = ModelConfig.model_validate(config.model_dump() | {"moe": moe, "ffn": None})
    return config


class _Case:
    """A step, and what becomes of it when it changes."""

    def __init__(self, evaluator: GEMMEvaluator, config: ModelConfig, rng: random.Random, report: Report) -> None:
        self.evaluator, self.config, self.rng, self.report = evaluator, config, rng, report
        self.layout = rng.choice(list(legal_layouts(config, rng.choice((1, 4, 16)), max_context=2)))
        assert isinstance(evaluator.arch, GpuSpec)
        narrow = "fp8" if DType.FP8 in evaluator.arch.tensor_flop_per_cycle else "bf16"
        self.asked: dict[str, Any] = {
            "seq_len": rng.choice((256, 2048, 8192)), "dtype": rng.choice(("bf16", "bf16", narrow)),
            "zero": rng.randint(0, 3), "recompute": rng.choice(RECOMPUTE), "ignore_memory": True,
            "schedule": rng.choice(("1f1b", "zero-bubble", "dualpipe")),
        }  # fmt: skip
        self.num_micro = rng.choice((1, 2, 8))
        if self.schedule_on(self.layout) == "dualpipe":
            self.num_micro = 2 * self.layout.pipeline

    def schedule_on(self, layout: Layout) -> str:
        """Return the schedule of a layout: DualPipe is for an even number of stages."""
        schedule = self.asked["schedule"]
        return "1f1b" if schedule == "dualpipe" and layout.pipeline % 2 else str(schedule)

    def ask(self, **changes: Any) -> TrainingEstimate:
        options = self.asked | changes
        layout = options.pop("layout", self.layout)
        options["schedule"] = self.schedule_on(layout)
        return estimate_training(
            self.config, self.evaluator, tensor_parallel=layout.tensor, pipeline_parallel=layout.pipeline,
            context_parallel=layout.context, expert_parallel=layout.expert, data_parallel=layout.data,
            global_batch=layout.data * self.num_micro, **options,
        )  # fmt: skip

    def stage(self, layout: Layout, recompute: str = "none") -> Any:
        options = self.asked
        types = types_on(self.evaluator.arch, options["dtype"], None, self.config)
        prices = StepPrices(self.evaluator, self.config, options["seq_len"], types | {"expert_load": "balanced"})
        stages = stages_of(prices, layout, 1, self.schedule_on(layout), 1, recompute, {}, options["zero"])
        return prices, max(stages, key=lambda stage: stage.times.total_us)

    def check(self) -> None:
        try:
            base = self.ask()
        except (InvalidOptionError, UnsupportedError):
            return  # layouts that a stage's devices do not divide, archs that nothing joins
        self.sums(base)
        self.rng.choice((self.recomputation, self.data_parallelism, self.memory, self.zero))()

    def sums(self, base: TrainingEstimate) -> None:
        total_us = sum(base.breakdown.values())
        self.law("terms add up", math.isclose(total_us, base.latency_us, rel_tol=ROUNDING), base)
        self.law("no term is negative", min(base.breakdown.values()) >= -ROUNDING * total_us, base)
        self.law("an interval holds its time", base.low_us <= base.latency_us <= base.high_us, base)
        self.law("MFU and HFU are at most 1", 0 < base.mfu_frac <= base.hfu_frac <= 1, base)

    def recomputation(self) -> None:
        layout = self.layout._replace(pipeline=1, data=self.layout.data * self.layout.pipeline)
        try:
            plain, full = (self.ask(layout=layout, recompute=name) for name in ("none", "full"))
        except InvalidOptionError:
            return
        more_us, (_, stage) = full.stages[0].dgrad_us - plain.stages[0].dgrad_us, self.stage(layout)
        parts = [times.forward for times, _ in stage.parts if not times.part.layers]
        outside_us = sum(each.compute_us + sum(each.messages_us) for each in parts)
        before_us = stage.times.forward_us - (0.0 if self.asked["zero"] < 3 else stage.us_by_kind["dp"])
        law, again_us = "full recomputation adds exactly the layers' forward pass", full.breakdown["recompute"]
        self.law(law, math.isclose(self.num_micro * more_us, again_us, rel_tol=ROUNDING), (more_us, again_us))
        self.law(law, before_us - outside_us <= more_us * (1 + ROUNDING), (more_us, before_us, outside_us))
        self.law(law, more_us <= stage.times.forward_us * (1 + ROUNDING), (more_us, before_us, outside_us))
        self.holds("recomputation adds no more than its time", plain.latency_us + again_us, full.latency_us)
        self.holds("what is recomputed is not kept", plain.memory.activation_bytes, full.memory.activation_bytes, 2.0)

    def data_parallelism(self) -> None:
        once = self.layout._replace(pipeline=1)  # more replicas move the next stage to another node
        twice = once._replace(data=2 * once.data)
        try:
            base, more = self.ask(layout=once), self.ask(layout=twice)
        except InvalidOptionError:
            return
        prices, _ = self.stage(twice)
        options = self.asked
        stages = stages_of(prices, twice, 1, self.schedule_on(twice), 1, options["recompute"], {}, options["zero"])
        messages_us = max(
            2 * sum(data_us(prices, twice, *each.num_params, word) for word in ("gather", "sum")) for each in stages
        )
        passes = self.num_micro + 1 if options["zero"] == 3 else 1
        law = "more data parallelism adds at most its messages"
        self.holds(law, base.latency_us + passes * messages_us, more.latency_us)

    def memory(self) -> None:
        asked = {
            "num_devices": self.layout.num_devices, "seq_len": self.asked["seq_len"], "dtype": self.asked["dtype"],
            "global_batch": 8 * self.layout.num_devices, "zeros": (1, 3), "micro_batches": (1, 2),
            "schedules": ("1f1b",),
        }  # fmt: skip
        frac = self.rng.uniform(0.02, 0.6)
        best_us = []
        for share in (frac, frac * self.rng.uniform(1.0, 1.6)):
            try:
                found = find_training_layouts(self.config, self.evaluator, memory_frac=share, **asked)
                best_us.append(found[0].latency_us)
            except InfeasibleError:
                best_us.append(math.inf)
            except UnsupportedError:
                return
        self.law("more memory is never slower", best_us[1] <= best_us[0], best_us)

    def zero(self) -> None:
        held = [self.ask(zero=zero).memory for zero in range(4)]
        for before, after in pairwise(held[:3]):
            self.holds("a stage of ZeRO takes no more memory", before.total_bytes, after.total_bytes)
        at_work = held[2].total_bytes + held[2].weight_bytes * (self.layout.num_devices > self.layout.tensor)
        self.holds("a stage of ZeRO takes no more memory, but for layers at work", at_work, held[3].total_bytes)

    def holds(self, law: str, larger: float, smaller: float, factor: float = 1.0) -> None:
        """Count a law that says `larger` times `factor` >= `smaller`."""
        self.law(law, larger * factor >= smaller - ROUNDING * max(abs(smaller), 1.0) * 10, (larger, smaller))

    def law(self, law: str, is_kept: bool, what: Any) -> None:
        self.report.checked[law] += 1
        if not is_kept:
            self.report.violations.append(f"{law}: {self}: {what}")

    def __str__(self) -> str:
        config = self.config.model_dump(exclude_none=True)
        return f"{self.evaluator.arch.name} {self.layout} x{self.num_micro} {self.asked}: {config}"
