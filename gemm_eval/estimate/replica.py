"""A replica: the devices that hold one copy of a model, and the times of its steps."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

from gemm_eval import transformer as models
from gemm_eval.arch import PCIE_BOXES, ArchSpec, GpuSpec, MulticoreSpec
from gemm_eval.errors import InvalidInputError
from gemm_eval.estimate.price import IDEAL, Engine, OperationCost, costs_of, load_engine, shared_prices
from gemm_eval.evaluate import GEMMEvaluator, sum_interval
from gemm_eval.frozen import FrozenDict
from gemm_eval.moe import Distribution
from gemm_eval.words import check_word, shown
from gemm_eval.workload import MAX_DIM

KINDS = ("gemm", "attention", "moe", "memory", "collective")
"""Kinds of operations, in the order in which they are shown."""


class StepSize(NamedTuple):
    """The size of a step: a chunk of prompts, tokens of a batch in decode, or both in one (a mixed step).

    Attributes:
        phase: ``"prefill"`` or ``"decode"``; a mixed step is a prefill with decodes beside it.
        batch: sequences.
        new_tokens: of each sequence in this step.
        seq_len: positions of each sequence, the new ones included.
        num_decodes, decode_len: sequences of one new token beside a chunk of prefill, and positions of each.
    """

    phase: str
    batch: int
    new_tokens: int
    seq_len: int
    num_decodes: int = 0
    decode_len: int = 1


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """A priced step; the first fields are those of `StepSize`.

    `stages` are the operations of each pipeline stage, on one of its devices; `host_us` is the time of the engine's
    host that the GPU waits for (`Engine.host_us`), `host_spread` the factor to both ends of its interval.
    """

    phase: str
    batch: int
    new_tokens: int
    seq_len: int
    stages: tuple[tuple[OperationCost, ...], ...]
    num_decodes: int = 0
    decode_len: int = 1
    host_us: float = 0.0
    host_spread: float = 1.0
    plain_names: ClassVar = (
        "phase", "batch", "new_tokens", "seq_len", "latency_us", "interval_us", "host_us", "stage_us", "us_by_kind",
        "stages",
    )  # fmt: skip

    @property
    def stage_us(self) -> tuple[float, ...]:
        """Time of each stage."""
        return tuple(sum(cost.total_us for cost in stage) for stage in self.stages)

    @property
    def latency_us(self) -> float:
        """Time of the step through all stages, and of the host."""
        return sum(self.stage_us) + self.host_us

    @property
    def interval_us(self) -> tuple[float, float]:
        """The interval of the time of the step that holds 80% of measured ones."""
        host = self.host_us, self.host_us / self.host_spread, self.host_us * self.host_spread
        return sum_interval([*(cost.total for cost in self.costs), *([host] if self.host_us else [])])

    def interval_of(self, latency_us: float, spread: float = 0.0) -> tuple[float, float]:
        """Return the interval of a time that steps such as this one make up: as wide in proportion as its own.

        `spread` is how much wider, in log, what no kernel knows makes it by itself: host, schedule and network.
        """
        ends = (math.log(end_us / self.latency_us) for end_us in self.interval_us)
        low, high = (math.copysign(math.hypot(end, spread), sign) for end, sign in zip(ends, (-1.0, 1.0), strict=True))
        return latency_us * math.exp(low), latency_us * math.exp(high)

    @property
    def us_by_kind(self) -> dict[str, float]:
        """Time of the step by kind of operation, through all stages."""
        total = dict.fromkeys(KINDS, 0.0)
        for cost in self.costs:
            total[cost.operation.kind] += cost.total_us
        return total

    @property
    def frac_by_source(self) -> dict[str, float]:
        """Share of the time of the kernels by what their prices rest on (`Price.source`), most first."""
        us_by_source: dict[str, float] = {}
        for cost in self.costs:
            us_by_source[cost.source] = us_by_source.get(cost.source, 0.0) + cost.total_us
        all_us, by_time = sum(us_by_source.values()), sorted(us_by_source.items(), key=lambda item: -item[1])
        return {source: us / all_us for source, us in by_time if us > 0.0}

    @property
    def costs(self) -> tuple[OperationCost, ...]:
        """Operations of all stages."""
        return tuple(cost for stage in self.stages for cost in stage)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        data = {name: getattr(self, name) for name in self.plain_names}
        if self.num_decodes:
            data |= {"num_decodes": self.num_decodes, "decode_len": self.decode_len}
        return data | {"stages": [[cost.to_dict() for cost in stage] for stage in self.stages]}


_LIBRARY_KINDS = {"gemm": "gemm", "attention": "attention", "collective": "collective", "expert": "moe"}


class Basis(NamedTuple):
    """The basis of an answer: its engine, libraries by kind of kernel, and shares of the time of steps by source.

    Several libraries of a kind are joined by +; None: there is no such kernel, or the chip is a multi-core one.
    Sources are those of `Price`.
    """

    engine: str
    libraries: dict[str, str | None]
    sources: dict[str, dict[str, float]]

    @classmethod
    def of(cls, engine: Engine, *steps: StepEstimate) -> Self:
        """Return the basis of steps of a replica."""
        costs = [cost for step in steps for cost in step.costs]
        used = {kind: dict.fromkeys(cost.library for cost in costs if cost.operation.kind == kind) for kind in KINDS}
        libraries = {name: " + ".join(filter(None, used[kind])) or None for name, kind in _LIBRARY_KINDS.items()}
        return cls(str(engine), libraries, {step.phase: step.frac_by_source for step in steps})

    def __str__(self) -> str:
        libraries = ", ".join(f"{kind} {name}" for kind, name in self.libraries.items() if name is not None)
        sources = [
            f"{phase} {', '.join(f'{source} {frac:.0%}' for source, frac in fracs.items())}"
            for phase, fracs in self.sources.items()
        ]
        return f"Kernels: {libraries or 'best mappings of the chip'}; time by source: {'; '.join(sources)}."


class Replica:
    """The devices that hold one copy of a model: layout, types and kernels, and prices of the work of its steps.

    Arguments and errors are those of `estimate_model`. Equal work of all replicas of an evaluator is priced once.

    Attributes:
        engine: the engine that runs it; libraries, fusions and `chunk_tokens` that are None are its own.
        config: the model as the arch runs it.
        held: options of `model_memory`, but for batch and positions.
        memory_limit: the most bytes that a device may hold (`MemoryShare`); None: the arch does not say its DRAM.
        options: what was asked, by name.
        has_expanded_weights: the arch does not multiply a type of the checkpoint, whose weights are expanded first.
    """

    def __init__(
        self, model: models.ModelConfig | str | os.PathLike[str],
        arch: ArchSpec | GEMMEvaluator | str | os.PathLike[str], *, tensor_parallel: int = 1,
        pipeline_parallel: int = 1, expert_parallel: int = 1, dtype: str | None = None,
        dense_dtype: str | None = None, expert_dtype: str | None = None, kv_dtype: str | None = None,
        chunk_tokens: int | None = None, expert_load: str | Distribution = "uniform",
        fusions: models.Fusions | None = None, fused: bool | None = None, attention_library: str | None = None,
        collective_library: str | None = None, expert_library: str | None = None, interconnect: str | None = None,
        memory_frac: float | None = None, engine: Engine | str | os.PathLike[str] = IDEAL,
    ) -> None:  # fmt: skip
        self.evaluator = evaluator = evaluator_of(arch)
        self.arch = evaluator.arch
        engine = load_engine(engine)
        if isinstance(self.arch, MulticoreSpec) and self.arch.host_us:
            engine = engine.model_copy(update={"step_us": engine.step_us + self.arch.host_us})
        self.engine = engine
        self.chunk_tokens = engine.chunk_tokens if chunk_tokens is None else chunk_tokens
        fusions = models.Fusions(**engine.fusions) if fusions is None else fusions
        published = model if isinstance(model, models.ModelConfig) else models.load_model(model)
        self.config = config = models.model_on(self.arch, published)
        self.has_expanded_weights = dtype is None and config != published
        degrees = {
            "tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel,
            "expert_parallel": expert_parallel,
        }  # fmt: skip
        types: dict[str, Any] = {
            **models.types_on(self.arch, dtype, dense_dtype, config), "expert_dtype": expert_dtype,
            "kv_dtype": kv_dtype,
        }  # fmt: skip
        libraries: dict[str, Any] = {
            "attention_library": attention_library, "collective_library": collective_library,
            "expert_library": expert_library,
        }  # fmt: skip
        box = _interconnect(self.arch, interconnect)
        self.tensor_parallel, self.pipeline_parallel, self.expert_parallel = degrees.values()
        self._share = engine.memory_share(memory_frac)
        self.memory_limit = self._share.limit_on(self.arch)
        multiples = engine.expert_multiples.get(self.arch.sm_arch, {}) if isinstance(self.arch, GpuSpec) else {}
        self.held: dict[str, Any] = {
            **degrees, **types, "chunk_tokens": self.chunk_tokens, "block_size": engine.block_size,
            "logit_bytes": engine.logit_bytes, "multiples": FrozenDict(multiples),
        }  # fmt: skip
        self._asked: dict[str, Any] = {**degrees, **types, "expert_load": expert_load, "fusions": fusions}
        if self.arch.interconnect is not None:
            self._asked["node_devices"] = models.num_joined(self.arch)
        self._stages = _equal_stages(
            config, pipeline_parallel, max(tensor_parallel, expert_parallel), self._asked.get("node_devices", MAX_DIM)
        )
        self._fitting: dict[tuple[int, int], models.ModelMemory] = {}
        self._largest: dict[int, int] = {}
        self._prices = shared_prices(evaluator, engine, fused=fused, interconnect=box, **libraries)
        self.options: dict[str, Any] = degrees | types | {
            "chunk_tokens": self.chunk_tokens, "expert_load": str(expert_load), "fused": fused,
            "memory_frac": self._share.frac,
            "separate_quantization": not fusions.quantization if isinstance(self.arch, GpuSpec) else None,
            "interconnect": box, "engine": str(engine),
        } | libraries  # fmt: skip

    @property
    def num_groups(self) -> int:
        """Groups of data-parallel attention: experts are spread over more devices than a tensor-parallel group has."""
        return max(1, self.expert_parallel // self.tensor_parallel)

    @property
    def num_devices(self) -> int:
        """Devices of the replica."""
        return self.pipeline_parallel * self.tensor_parallel * self.num_groups

    def memory(self, batch: int, seq_len: int) -> models.ModelMemory:
        """Return what the device that holds most holds with `batch` sequences of `seq_len` positions a group."""
        return models.model_memory(self.config, batch_size=batch, seq_len=seq_len, **self.held)

    def check_memory(self, batch: int, seq_len: int, output_len: int = 0) -> models.ModelMemory:
        """Return `memory`; InfeasibleError: it does not fit, with each change that would do, the output as it is."""
        if (batch, seq_len) not in self._fitting:
            held = {**self.held, "batch_size": batch, "seq_len": seq_len}
            memory = models.check_memory(self.config, self.arch, share=self._share, output_len=output_len, **held)
            self._fitting[batch, seq_len] = memory
        return self._fitting[batch, seq_len]

    def largest_batch(self, seq_len: int) -> int | None:
        """Return the most sequences a group that fit, 0: not one; None: the arch does not say its DRAM."""
        if self.memory_limit is None:
            return None
        if seq_len not in self._largest:
            self._largest[seq_len] = models.largest_batch(self.config, self.memory_limit, seq_len=seq_len, **self.held)
        return self._largest[seq_len]

    def steps(self, sizes: Iterable[StepSize]) -> list[StepEstimate]:
        """Return priced steps; all work that is new is priced in one batch."""
        steps = []
        for size in sizes:
            asked = {
                "phase": size.phase, "batch_size": size.batch, "seq_len": size.seq_len, "new_tokens": size.new_tokens,
                "num_decodes": size.num_decodes, "decode_len": size.decode_len,
            } | self._asked  # fmt: skip
            stages = {stage: _operations(self.config, stage=stage, **asked) for stage in set(self._stages)}
            steps.append((size, stages))
        self._prices.find(operation.work for _, stages in steps for stage in stages.values() for operation in stage)
        estimates = []
        for size, stages in steps:
            costs = {stage: costs_of(self._prices, operations) for stage, operations in stages.items()}
            host = self.engine.host_us(size.batch + size.num_decodes), self.engine.host_spread(self.arch)
            all_costs = tuple(costs[stage] for stage in self._stages)
            estimates.append(StepEstimate(*size[:4], all_costs, *size[4:], *host))
        return estimates


def _equal_stages(config: models.ModelConfig, num_stages: int, devices: int, node_devices: int) -> tuple[int, ...]:
    """Return for each pipeline stage, of so many devices, the first one that runs the same operations."""
    first: dict[Any, int] = {}
    return tuple(
        first.setdefault(
            (
                models.stage_config(config, layers), index if index in (0, num_stages - 1) else None,
                models.sends_to_other_node(index, num_stages, devices, node_devices),
            ), index,
        )
        for index, layers in enumerate(models.stage_layers(config.num_layers, num_stages))
    )  # fmt: skip


def evaluator_of(arch: Any) -> GEMMEvaluator:
    """Return the evaluator of an arch, its name or path; or the evaluator that was given."""
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


_cached_operations = lru_cache(maxsize=1024, typed=True)(models.model_operations)


def _operations(config: models.ModelConfig, **asked: Any) -> tuple[models.Operation, ...]:
    """Return `model_operations`, which other archs and points have too."""
    try:
        return _cached_operations(config, **asked)
    except TypeError:  # an argument that has no hash, and no meaning either
        return models.model_operations(config, **asked)


def pipeline_us(chunk_us: Sequence[Sequence[float]]) -> float:
    """Return the time from the start of the first chunk on the first stage to the end of the last on the last stage.

    A stage works on one chunk at a time, in order, and a chunk begins on a stage when the stage before is done with it
    (a permutation flow shop):

        finish[i][s] = max(finish[i - 1][s], finish[i][s - 1]) + time[i][s]

    Args:
        chunk_us: [num_chunks, num_stages], time of each chunk on each stage.
    """
    finish_us = [0.0] * len(chunk_us[0])
    for stage_us in chunk_us:
        done_us = 0.0  # with this chunk, on the stage before
        for stage, us in enumerate(stage_us):
            done_us = finish_us[stage] = max(finish_us[stage], done_us) + us
    return finish_us[-1]
