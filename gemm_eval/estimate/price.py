"""Serving engines as values, and prices of work on an arch: every kind in one batch by its own model.

An engine is data, ``arch/engines/<name>.yaml``, in which every number has its kind and source: which kernels run, what
is fused, and what the host takes beside the kernels. What was fitted on served models stands in
``arch/calibration/engines.yaml``, which `gemm-eval calibrate served` writes.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from gemm_eval.arch import (
    GFX_ARCHS,
    SM_ARCHS,
    ArchSpec,
    ClockState,
    Frozen,
    GpuSpec,
    Provenance,
    Table,
    build_spec,
    data_root,
    preset_files,
    read_yaml,
    split_provenance,
)
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator, GEMMTable, memory_bounds
from gemm_eval.models.gpu import ENGINES, LIBRARIES, OTHER_MAKER, first_library
from gemm_eval.models.gpu.attention import ATTENTION_LIBRARIES
from gemm_eval.models.gpu.collective import COLLECTIVE_LIBRARIES
from gemm_eval.models.gpu.mixers import MIXER_LIBRARIES
from gemm_eval.moe import MoeLayer, moe_layers
from gemm_eval.transformer import (
    CHUNK_TOKENS,
    MEMORY_FRAC,
    AttentionWork,
    Fusions,
    GemmWork,
    MemoryShare,
    MemoryWork,
    MixerWork,
    Operation,
)
from gemm_eval.words import refusal, shown
from gemm_eval.workload import CollectiveProblem, GemmProblem, GemmTypes

Text = Annotated[str, Field(max_length=4000)]
HostTime = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]

_IDEAL = "ideal"

HOST_TIMES = ("step_us", "seq_us", "request_us")
"""The fields of an engine that are fitted on served models."""


class Engine(Frozen):
    """A serving engine, in a version.

    `gemm_library` and `expert_libraries` name libraries of `gemm_eval.models.gpu.LIBRARIES`; types that a library has
    no kernels for run on the default. Of `expert_libraries` the first counts that has kernels for the types; a
    generation of SMs that it does not list has those of `gemm_eval.models.gpu.engine_libraries`.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="name in answers")]
    title: Text = Field(default="", description="the engine, on a line")
    version: Text = Field(default="", description="the release that its numbers are of")
    gemm_library: Text | None = Field(default=None, description="whose kernels run GEMMs; null: the default")
    attention_library: Text | None = Field(default=None, description="whose kernels run attention; null: the default")
    collective_library: Text | None = Field(default=None, description="library of collectives; null: the default")
    expert_libraries: Table[str, Annotated[tuple[Text, ...], Field(strict=False)]] = Field(
        default={}, description="generation of SMs -> whose kernels run experts, in the order in which they are tried"
    )
    wide_expert_libraries: Table[str, Annotated[tuple[Text, ...], Field(strict=False)]] = Field(
        default={}, description="the same instead where experts lie on more devices than a node of x86 servers has, 8"
    )
    fusions: Table[str, bool] = Field(default={}, description="fields of Fusions that differ from its defaults")
    writes_cache: bool = Field(default=True, description="attention turns positions and writes the cache in its call")
    clock: Annotated[ClockState, Field(strict=False)] = Field(default=ClockState.BURST, description="of GEMMs")
    gemm_frac: Table[str, Table[str, Annotated[float, Field(gt=0, le=4)]]] = Field(
        default={}, description="generation of SMs, type of A -> time of GEMMs over that of the kernels that were timed"
    )
    chunk_tokens: int = Field(default=CHUNK_TOKENS, ge=1, le=1 << 24, description="most tokens of prompts in a step")
    max_seqs: int = Field(default=1024, ge=1, le=1 << 24, description="most sequences in decode")
    has_mixed_steps: bool = Field(default=True, description="prompts share steps with decodes; else own steps, first")
    reserves_output: bool = Field(
        default=False, description="a request is admitted only with room for its whole output"
    )
    memory_frac: float = Field(default=MEMORY_FRAC, gt=0, le=1, description="share of a device's memory, by default")
    memory_of: Literal["device", "static", "free"] = Field(default="device", description="see `MemoryShare.of`")
    reserve_bytes: int = Field(default=0, ge=0, le=1 << 40, description="see `MemoryShare.reserve_bytes`")
    block_size: int = Field(default=1, ge=1, le=1 << 24, description="positions of a block of the cache")
    logit_bytes: int = Field(
        default=4, ge=1, le=1 << 10, description="of a logit while tokens are sampled, at the peak"
    )
    expert_multiples: Table[str, Table[str, Annotated[tuple[int, int], Field(strict=False)]]] = Field(
        default={}, description="generation of SMs, `WeightPart.types` -> multiples that experts are padded to"
    )
    sends_chunks: bool = Field(
        default=False, description="of pools: the cache of each chunk is sent when it is read; else all after the last"
    )
    on_amd: bool = Field(
        default=False, description="it also runs on AMD's GPUs, where its host times are those of NVIDIA's, less sure"
    )
    step_us: HostTime = Field(default=0.0, description="host time of a step that the GPU waits for")
    seq_us: HostTime = Field(default=0.0, description="the same for each sequence in it")
    request_us: HostTime = Field(default=0.0, description="time of a request before its first step: HTTP, tokens")
    tpot_spread: Spread = Field(default=0.0, description="half of the 80% interval of TPOT in log, beside the kernels'")
    ttft_spread: Spread = Field(default=0.0, description="the same of TTFT")
    sources: Table[str, Text] = Field(default={}, description="short name -> full reference")
    provenance: Table[str, Provenance] = Field(default={}, description="field -> kind and source")

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            Fusions(**self.fusions)
        except TypeError:
            unknown = [name for name in self.fusions if name not in Fusions.__slots__]
            raise ValueError(refusal("fusions", unknown[0], Fusions.__slots__)) from None
        names = [name for of in (*self.expert_libraries.values(), *self.wide_expert_libraries.values()) for name in of]
        for name in (*names, *filter(None, [self.gemm_library])):
            if name not in (*LIBRARIES, *ENGINES):
                raise ValueError(refusal("library", name, (*LIBRARIES, *ENGINES)))
        for field, known in (("attention", ATTENTION_LIBRARIES), ("collective", COLLECTIVE_LIBRARIES)):
            name = getattr(self, f"{field}_library")
            if name is not None and name not in known:
                raise ValueError(refusal(f"{field}_library", name, known))
        for word in (word for of in self.gemm_frac.values() for word in of):
            if word not in tuple(DType):
                raise ValueError(refusal("gemm_frac", word, tuple(map(str, DType))))
        return self

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()

    def host_us(self, num_seqs: int) -> float:
        """Return the host time of a step of so many sequences that the GPU waits for, in microseconds."""
        return self.step_us + self.seq_us * num_seqs

    def memory_share(self, frac: float | None = None) -> MemoryShare:
        """Return the share of a device's memory that the engine fills; `frac` None: its own."""
        return MemoryShare(self.memory_frac if frac is None else frac, self.memory_of, self.reserve_bytes)

    def host_spread(self, arch: ArchSpec) -> float:
        """Return the factor from the host time of a step to both ends of its interval: 1 where it was fitted."""
        return math.exp(OTHER_MAKER) if isinstance(arch, GpuSpec) and arch.sm_arch in GFX_ARCHS else 1.0

    def check(self, arch: ArchSpec) -> None:
        """Raise `UnsupportedError` where an engine is asked for on an arch whose kernels it is not known by."""
        known = (*SM_ARCHS, *(GFX_ARCHS if self.on_amd else ()))
        if self.name != _IDEAL and not (isinstance(arch, GpuSpec) and arch.sm_arch in known):
            makers = "NVIDIA and AMD GPUs" if self.on_amd else "NVIDIA GPUs"
            raise UnsupportedError(
                f"engine {self.name} is known on {makers} alone, and {arch.name} is none: use engine={_IDEAL!r}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.model_dump(mode="json", exclude={"sources"})

    def explain(self) -> str:
        """Return sentences on what an answer for this engine rests on."""
        if self.name == _IDEAL:
            host = f"{self.step_us:,.0f} us of the host a step" if self.step_us else "no time of the host"
            return f"Engine: ideal, the sum of the kernels; {host}."
        host = f"{self.step_us:,.0f} us a step and {self.seq_us:,.1f} us a sequence of it"
        kind = self.provenance["step_us"].kind if "step_us" in self.provenance else "assumed"
        return (
            f"Engine: {self}; the GPU waits {host} for the host, a request {self.request_us / 1e3:,.1f} ms before its "
            f"first step ({kind}); clock of GEMMs {self.clock}."
        )


IDEAL = Engine(name=_IDEAL, title="the sum of the kernels, with the default libraries and no time of the host")
"""The engine that adds nothing to its kernels: default libraries, all fusions of `Fusions`, no host."""


def list_engines() -> tuple[str, ...]:
    """Return the names of the engines that come with the library, sorted."""
    return tuple(sorted((_IDEAL, *preset_files("engines"))))


def engine_calibration_path() -> Path:
    """Return where fitted numbers of engines lie."""
    return data_root() / "calibration" / "engines.yaml"


def load_engine(engine: Engine | str | os.PathLike[str]) -> Engine:
    """Return an engine by name or from a YAML file; an `Engine` is returned as it is.

    >>> load_engine("ideal").step_us
    0.0

    Raises:
        InvalidOptionError: no engine of this name.
        InvalidInputError: `engine` is something else.
        ArchError: the file is missing or malformed; the message names file and field.
    """
    if isinstance(engine, Engine):
        return engine
    if not isinstance(engine, str | os.PathLike):
        raise InvalidInputError(f"engine must be an Engine, its name or path, got {shown(engine)}")
    text = os.fspath(engine)
    if isinstance(engine, str) and not text.endswith((".yaml", ".yml")):
        if text not in list_engines():
            raise InvalidOptionError(refusal("engine", text, list_engines()))
        return IDEAL if text == _IDEAL else _load_preset(text, data_root())
    return _load(Path(text))


@cache
def _load_preset(name: str, root: Path) -> Engine:  # noqa: ARG001  another root has other presets
    return _load(preset_files("engines")[name], fitted_numbers().get(name, {}))


def fitted_numbers() -> Mapping[str, Mapping[str, Any]]:
    """Return the fitted numbers of engines by name, as entries with value, kind and source."""
    path = engine_calibration_path()
    engines: Mapping[str, Mapping[str, Any]] = read_yaml(path)["engines"] if path.is_file() else {}
    source = f"calibration/{path.name}: served models, `gemm-eval calibrate served`"
    return {
        name: {field: {"value": float(value), "kind": "fitted", "source": source} for field, value in fields.items()}
        for name, fields in engines.items()
    }


def _load(path: Path, fitted: Mapping[str, Any] | None = None) -> Engine:
    data = split_provenance({"name": path.stem} | read_yaml(path) | dict(fitted or {}), str(path))
    return build_spec(Engine, data, origin=str(path))


_SERVED_SMS = ("sm_90", "sm_100", "sm_103")


def default_engine(arch: ArchSpec) -> str:
    """Return the name of the engine that most served runs of a chip's generation were timed with, else vLLM.

    ``"ideal"`` on archs whose engines are not known.
    """
    if not (isinstance(arch, GpuSpec) and arch.sm_arch.startswith("sm_")):
        return _IDEAL
    return "trtllm" if arch.sm_arch in _SERVED_SMS else "vllm"


IN_ATTENTION = "in attention"
"""The bound of an operation that the attention of its layer contains: it takes no time of its own."""

_QUANTIZATION = ("quantize_us", "cast_us")  # terms of the kernels before a GEMM
_POSITIONS = frozenset({"rotary_kv_write", "rotary", "kv_write"})
_DECISIVE_FRAC = 0.5  # of the time, above which bytes are what limits a memory-bound kernel
_MAX_PRICES = 1 << 16  # that are kept, of less than 1 KB each
_NODE_DEVICES = 8  # of x86 servers, within which engines hand tokens to experts by gathers


class Price(NamedTuple):
    """The time of one piece of work between other kernels, and what limits it, in the word of its model.

    Attributes:
        latency_us: time; 0 where nothing is known.
        source: ``calibrated``, ``corrected``, ``analytic``, ... in the word of its model.
        how: kernel of attention, or algorithm of a collective; empty: nothing to add.
        low_us, high_us: 80% of measured times of such work lie between; None: not known.
        has_positions: attention turns positions and writes the cache too.
        library: whose kernels; empty: a multi-core chip.
        detail, num_bytes: sizes and kernel in words, and compulsory bytes, where they are asked for.
    """

    latency_us: float
    bound: str
    source: str = ""
    how: str = ""
    low_us: float | None = None
    high_us: float | None = None
    has_positions: bool = False
    detail: str = ""
    num_bytes: int = 0
    library: str = ""

    @classmethod
    def of(cls, result: Any, *, bound: str | None = None, how: str = "", has_positions: bool = False) -> Self:
        """Return the price of a result by itself; `bound` None: as the result says."""
        return cls(
            result.latency_us, result.bound if bound is None else bound, result.source, how, result.low_us,
            result.high_us, has_positions, library=getattr(result, "library", None) or "",
        )  # fmt: skip

    def longer(self, more_us: float, factor: float = 1.0) -> Self:
        """Return a price of so many times the time, and as much more, its interval likewise."""
        low_us, high_us = (None if us is None else us * factor + more_us for us in (self.low_us, self.high_us))
        return self._replace(latency_us=self.latency_us * factor + more_us, low_us=low_us, high_us=high_us)

    @property
    def interval(self) -> tuple[float, float, float]:
        """Time, and the ends of its interval; where none is known the time itself."""
        low_us, high_us = (self.latency_us if us is None else us for us in (self.low_us, self.high_us))
        return self.latency_us, low_us, high_us


class Prices:
    """Prices of work on one arch; equal work is priced once.

    Options of GEMMs that the evaluator says win over those of the engine; see `GEMMEvaluator.evaluate_attention` for
    `fused` and `attention_library`, `evaluate_collective` for `collective_library` and `interconnect`. `expert_library`
    says whose kernels run experts. Libraries that are None are those of the engine.
    """

    def __init__(
        self, evaluator: GEMMEvaluator, *, fused: bool | None = None, attention_library: str | None = None,
        collective_library: str | None = None, expert_library: str | None = None, interconnect: str | None = None,
        engine: Engine | str = IDEAL,
    ) -> None:  # fmt: skip
        self.evaluator = evaluator
        self.engine = engine = load_engine(engine)
        engine.check(evaluator.arch)
        self._switch_us = cache(evaluator.switch_us)
        if attention_library is None and fused is not False:
            attention_library = engine.attention_library
        self._attention: dict[str, Any] = {"fused": fused, "library": attention_library}
        collective_library = collective_library or engine.collective_library
        self._collective: dict[str, Any] = {"library": collective_library, "interconnect": interconnect}
        self._expert_library = expert_library
        self._gemm_frac = engine.gemm_frac.get(getattr(evaluator.arch, "sm_arch", ""), {})
        clock = None if engine.clock == ClockState.BURST else str(engine.clock)
        self._gemm_evaluator = evaluator.preferring(library=engine.gemm_library, clock=clock)
        self._prices: dict[Any, Price] = {}
        self._models: Mapping[type, Callable[[Sequence[Any]], Sequence[Price]]] = {
            MixerWork: self._price_mixers, AttentionWork: self._price_attention, MoeLayer: self._price_experts,
            CollectiveProblem: self._price_collectives, GemmWork: self._price_gemms, MemoryWork: self._price_memory,
        }  # fmt: skip

    def find(self, works: Iterable[Any]) -> None:
        """Price work that is new, each kind in one batch.

        Raises:
            UnsupportedError: the arch cannot run a type, or has no link for a collective.
            InfeasibleError: no mapping fits.
        """
        if len(self._prices) > _MAX_PRICES:
            self._prices.clear()
        new: dict[type, list[Any]] = {}
        for work in dict.fromkeys(works):
            if work not in self._prices:
                new.setdefault(type(work), []).append(work)
        for kind, price in self._models.items():
            if kind in new:
                self._prices.update(zip(new[kind], price(new[kind]), strict=True))

    def __getitem__(self, work: Any) -> Price:
        while (price := self._prices.get(work)) is None:  # another thread may have forgotten it
            self.find([work])
        return price

    def _price_gemms(self, works: Sequence[GemmWork]) -> list[Price]:
        """Price GEMMs. Multi-core chips have no model of the kernel that quantizes A.

        Where the kernel before writes A as the GEMM reads it, the price is that of the GEMM alone. Some types were
        timed behind the kernel that quantizes A only, so that the correction is of both: then the terms of that kernel
        are taken off.
        """
        is_gpu = isinstance(self.evaluator.arch, GpuSpec)
        sources = [str(work.quantize_from) if is_gpu and work.quantize_from is not None else None for work in works]
        asked: dict[str | None, dict[GemmProblem, int]] = {}
        for work, source in zip(works, sources, strict=True):
            for kind in (None, source) if work.is_quantized else (source,):
                problems = asked.setdefault(kind, {})
                problems.setdefault(work.problem, len(problems))
        tables = {
            source: self._gemm_evaluator.evaluate_many(list(problems), quantize_from=source, progress=False)
            for source, problems in asked.items()
        }
        rows = {source: self._table_rows(table) for source, table in tables.items()}
        prices = []
        for work, source in zip(works, sources, strict=True):
            place = asked[source][work.problem]
            behind = price = rows[source][place]
            if source is not None and work.is_quantized:
                price = rows[None][asked[None][work.problem]]
                if behind.source == "corrected" != price.source:
                    terms = tables[source][place].breakdown
                    share = 1.0 - sum(terms.get(term, 0.0) for term in _QUANTIZATION) / behind.latency_us
                    price = behind.longer(0.0, share)._replace(bound=price.bound, source=price.source)
            frac = self._gemm_frac.get(str(work.problem.input_dtype), 1.0)
            prices.append(self._between(price.longer(0.0, frac), work.problem.rows))
        return prices

    def _table_rows(self, table: GEMMTable) -> list[Price]:
        columns = (table[name].tolist() for name in ("latency_us", "bound", "source"))
        prices = [Price(*row) for row in zip(*columns, strict=True)]
        ends = (np.where(np.isnan(table[name]), None, table[name]) for name in ("low_us", "high_us"))
        libraries = table["library"] if isinstance(self.evaluator.arch, GpuSpec) else [""] * len(table)
        more = zip(prices, *ends, libraries, strict=True)
        return [price._replace(low_us=low, high_us=high, library=of) for price, low, high, of in more]

    def _between(self, price: Price, num_rows: int) -> Price:
        """Return the price of a kernel between others: it takes `GEMMEvaluator.switch_us` more than by itself."""
        return price.longer(self._switch_us(num_rows))

    def _price_attention(self, works: Sequence[AttentionWork]) -> list[Price]:
        results = self.evaluator.evaluate_attention_problems([work.problem for work in works], **self._attention)
        writes = self.engine.writes_cache
        prices = (Price.of(r, how=r.kernel, has_positions=r.has_positions and writes) for r in results)
        sizes = (work.problem.batch * work.problem.q_len for work in works)
        return list(map(self._between, prices, sizes))

    def _price_mixers(self, works: Sequence[MixerWork]) -> list[Price]:
        library = self.engine.name if self.engine.name in MIXER_LIBRARIES else None
        results = self.evaluator.evaluate_mixers([work.problem for work in works], library=library)
        prices = (Price.of(r, how=r.library) for r in results)
        sizes = (work.problem.batch * work.problem.q_len for work in works)
        return list(map(self._between, prices, sizes))

    def _price_experts(self, layers: Sequence[MoeLayer]) -> list[Price]:
        by_library: dict[str | None, list[MoeLayer]] = {}
        for layer in layers:
            by_library.setdefault(self._library_of(layer), []).append(layer)
        prices: dict[MoeLayer, Price] = {}
        for library, some in by_library.items():
            results = moe_layers(self._gemm_evaluator, some, library=library, progress=False)
            prices |= zip(some, (Price.of(r, how=library or "") for r in results), strict=True)
        return [prices[layer] for layer in layers]

    def _library_of(self, layer: MoeLayer) -> str | None:
        """Return whose kernels run a layer of experts; None: the default."""
        arch, types = self.evaluator.arch, layer.dtype
        if self._expert_library is not None or not (isinstance(arch, GpuSpec) and isinstance(types, GemmTypes)):
            return self._expert_library
        tables = self.engine.expert_libraries, self.engine.wide_expert_libraries
        libraries = tables[layer.ep > _NODE_DEVICES].get(arch.sm_arch) or tables[0].get(arch.sm_arch, ())
        return first_library(libraries, arch, types)

    def _price_collectives(self, problems: Sequence[CollectiveProblem]) -> list[Price]:
        results = (
            self.evaluator.evaluate_collective(
                problem.what, problem.message_bytes, problem.num_ranks, ranks_per_node=problem.ranks_per_node,
                network_bytes=problem.network_bytes, **self._collective,
            )
            for problem in problems
        )  # fmt: skip
        bounds = ("link", "network")
        return [Price.of(r, bound=bounds[r.num_nodes > 1], how=r.algorithm) for r in results]

    def _price_memory(self, works: Sequence[MemoryWork]) -> list[Price]:
        kernels = [(work.read_bytes, work.write_bytes, work.width, work.rows, work.what) for work in works]
        results = memory_bounds(self.evaluator.arch, kernels, is_under_load=True)
        bounds = ("launch", "dram")
        return [Price.of(r, bound=bounds[r.breakdown["bytes_us"] > _DECISIVE_FRAC * r.latency_us]) for r in results]


def shared_prices(evaluator: GEMMEvaluator, engine: Engine, **options: Any) -> Prices:
    """Return the prices that all replicas of an evaluator, an engine and options share; arguments as of `Prices`."""
    key = engine, repr(options)
    prices: Prices | None = evaluator.prices.get(key)
    if prices is None:
        prices = evaluator.prices[key] = Prices(evaluator, engine=engine, **options)
    return prices


_COLUMNS = ("latency_us", "low_us", "high_us", "total_us", "bound", "detail", "library", "source")


class OperationCost(NamedTuple):
    """The time of one run of an operation of a step on one device, between other kernels, and what limits it.

    80% of measured times lie within `low_us` to `high_us`. `how` is the kernel of attention, the library of experts, or
    the algorithm of a collective; empty: nothing to add. `source` and `library` are those of `Price`.
    """

    operation: Operation
    latency_us: float
    low_us: float
    high_us: float
    bound: str
    how: str = ""
    source: str = ""
    library: str = ""

    @property
    def total_us(self) -> float:
        """Time in all layers that have it."""
        return self.latency_us * self.operation.num_layers

    @property
    def total(self) -> tuple[float, float, float]:
        """Time in all layers, and its interval: the error is the same in each."""
        num = self.operation.num_layers
        return self.latency_us * num, self.low_us * num, self.high_us * num

    @property
    def detail(self) -> str:
        """Its sizes, in words."""
        work = self.operation.work
        if isinstance(work, MemoryWork):
            return f"{work.what}, {work.rows:,} x {work.width:,}"
        sizes = work.problem if isinstance(work, GemmWork | AttentionWork | MixerWork) else work
        return f"{sizes}, {self.how}" if self.how else str(sizes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        of_operation = {name: getattr(self.operation, name) for name in ("name", "kind", "layer_kind", "num_layers")}
        return of_operation | {name: getattr(self, name) for name in _COLUMNS}


def operation_costs(
    evaluator: GEMMEvaluator, operations: Sequence[Operation], **options: Any
) -> tuple[OperationCost, ...]:
    """Return what each operation of one step on one device takes, in their order; `options` are those of `Prices`.

    GEMMs and attention take `GEMMEvaluator.switch_us` more than by themselves. What turns positions and writes the
    cache takes no time where the attention of its layers does it.
    """
    prices = Prices(evaluator, **options)
    prices.find(operation.work for operation in operations)
    return costs_of(prices, operations)


def costs_of(prices: Prices, operations: Sequence[Operation]) -> tuple[OperationCost, ...]:
    """Return the costs of the operations of one step on one device, whose work was priced."""
    priced = [(operation, prices[operation.work]) for operation in operations]
    with_positions = {operation.layer_kind for operation, price in priced if price.has_positions}
    return tuple(
        OperationCost(operation, 0.0, 0.0, 0.0, IN_ATTENTION)
        if operation.layer_kind in with_positions and getattr(operation.work, "what", "") in _POSITIONS
        else OperationCost(operation, *price.interval, price.bound, price.how, price.source, price.library)
        for operation, price in priced
    )
