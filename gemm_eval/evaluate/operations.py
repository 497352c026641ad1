"""Times of collectives, of operations bound by memory, and of kernels of linear and sparse attention."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gemm_eval.arch import SM_ARCHS, ArchSpec, ChipLink, GpuSpec, Interconnect, MulticoreSpec, check_carried
from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.errors import InvalidProblemError, UnsupportedError
from gemm_eval.evaluate.interval import CORRECTION, CORRECTION_MEANING, chip_interval, interval_line, source_of
from gemm_eval.evaluate.result import Result, term_lines
from gemm_eval.frozen import FrozenDict
from gemm_eval.models.gpu import collective
from gemm_eval.models.gpu import memory_bound as memory_model
from gemm_eval.models.gpu.mixers import MIXER_LIBRARIES, MIXER_TERMS, mixer_model, mixer_rows, mixer_terms
from gemm_eval.models.gpu.network import NETWORK_SPREAD, Nodes, network_cost, nodes_of
from gemm_eval.units import bytes_per_us, time_text
from gemm_eval.words import as_integer, check_word, plain_number, shown
from gemm_eval.workload import ENGINES, MAX_DIM, MIXER_KERNELS, CollectiveProblem, MixerProblem, memory_kernel

COLLECTIVE_TERMS = {
    "launch_us": "the kernel, and the first meeting of the ranks",
    "protocol_us": "fences, barriers, a pipeline to fill",
    "hops_us": "latencies of the hops, one after the other",
    "link_us": "bytes over the link",
    CORRECTION: CORRECTION_MEANING,
}
"""Terms, and the work that each stands for; `correction_us` only where something was learned beyond the others."""
NETWORK_TERMS = {
    "net_hops_us": "latencies of the network, one after the other",
    "network_us": "bytes over the network; of link and network the longer counts",
}
"""Terms of collectives between nodes, besides `COLLECTIVE_TERMS`."""

_BYTES_PER_US_OF_GB = 1e3
CHIP_LINK = "link"
"""The library of collectives between multi-core chips: what rates and latencies of their spec allow."""


@dataclass(frozen=True, slots=True)
class CollectiveResult(Result):
    """The time of a collective, term by term.

    Attributes:
        library: whose choice of algorithm: ``trtllm`` (own kernels for all-reduces over NVLink, else NCCL) or ``nccl``,
            on AMD's GPUs likewise ``aiter`` or ``rccl``; between nodes ``nccl``, or ``deepep`` for tokens to experts
            and back; ``link`` between multi-core chips.
        latency_us: time of the call, in microseconds; 0 for one rank.
        algorithm: what runs, with its protocol: ``ring, LL``, ``NVLS``, ``one-shot``, ...; ``none`` for one rank.
        breakdown: microseconds by term (`COLLECTIVE_TERMS`, between nodes also `NETWORK_TERMS`).
        link_gb_per_s: what the spec says of the link, one direction, in 1e9 bytes/s.
        interconnect: how the node joins its GPUs (`Interconnect.topology`): ``switch``, ``mesh``, ``all-to-all``,
            ``pcie-one-socket`` or ``pcie-two-sockets``.
        source: see `Result`; a send has no timings and is always ``analytic``: it goes as an all-to-all does.
        origin: where the coefficients come from, in words.
        num_nodes: nodes in which the ranks lie, equally many in each.
        network: kind of the network between them (`Network.kind`); None: one node.
        network_gb_per_s: rate of the network out of a GPU, one direction, in 1e9 bytes/s; None: one node.
    """

    problem: CollectiveProblem
    arch_name: str
    library: str
    latency_us: float
    low_us: float
    high_us: float
    algorithm: str
    breakdown: FrozenDict[str, float]
    link_gb_per_s: float
    interconnect: str
    source: str
    origin: str
    model_version: str
    num_nodes: int = 1
    network: str | None = None
    network_gb_per_s: float | None = None
    _derived: ClassVar = ("bound", "bus_gb_per_s", "algorithm_gb_per_s")
    _derived_before: ClassVar = "breakdown"

    def __repr__(self) -> str:
        return (
            f"<CollectiveResult {self.problem} on {self.arch_name}: {self.latency_us:.4g} us, {self.algorithm}, "
            f"{self.source}>"
        )

    @property
    def bound(self) -> str:
        """The largest term: ``launch``, ``protocol``, ``hops``, ``link``, ``network``, ...; ``none`` for one rank."""
        if not self.latency_us:
            return "none"
        terms = {name: us for name, us in self.breakdown.items() if name != CORRECTION}
        return max(terms, key=lambda name: terms[name]).removesuffix("_us")

    @property
    def bus_gb_per_s(self) -> float:
        """Bytes that a rank has to send where nothing adds up on the way, over the time: nccl-tests' bus bandwidth."""
        return self.problem.wire_bytes / self.latency_us / _BYTES_PER_US_OF_GB if self.latency_us else 0.0

    @property
    def algorithm_gb_per_s(self) -> float:
        """Bytes of the larger buffer of a rank over the time: nccl-tests' algorithm bandwidth."""
        return self.problem.buffer_bytes / self.latency_us / _BYTES_PER_US_OF_GB if self.latency_us else 0.0

    @property
    def link_frac(self) -> float:
        """Bus bandwidth over that of the link; sums in the switch can be above 1, as they send less."""
        return self.bus_gb_per_s / self.link_gb_per_s

    @property
    def between_nodes(self) -> str:
        """Sentences on the network between nodes, and on what its times rest; empty: one node."""
        if self.network is None:
            return ""
        return (
            f"Nodes are joined by {self.network}, {self.network_gb_per_s:,.4g} GB/s a GPU a direction. Nothing was "
            "timed there: rates and latencies are published ones, and the interval is assumed, "
            f"{NETWORK_SPREAD:g} times either way."
        )

    def explain(self) -> str:
        """Return a short text: how long, how, and where the time goes."""
        lines = [
            f"{self.problem} on {self.arch_name}: {time_text(self.latency_us)} by {self.algorithm}, "
            f"{self.bus_gb_per_s:,.1f} of {self.link_gb_per_s:,.0f} GB/s a direction.",
            f"Joined by {self.interconnect}. Library: {self.library}; source: {self.source}; coefficients "
            f"{self.origin}.",
            interval_line(self.low_us, self.high_us),
            *term_lines(self.breakdown, COLLECTIVE_TERMS | NETWORK_TERMS),
        ]
        if self.num_nodes > 1:
            lines.insert(
                2, f"{self.num_nodes} nodes of {self.problem.num_ranks // self.num_nodes}. {self.between_nodes}"
            )
        return "\n".join(lines)


def _words_of(arch: ArchSpec) -> dict[str, str]:
    """Return the libraries of an arch's GPUs, and whose kernels each is modelled as.

    The last is the default: serving engines have kernels of their own for the short all-reduces of a decode step.
    """
    if isinstance(arch, MulticoreSpec):
        return {CHIP_LINK: CHIP_LINK}
    is_other_maker = arch.sm_arch not in SM_ARCHS
    return collective.MODELLED_AS if is_other_maker else {name: name for name in collective.COLLECTIVE_LIBRARIES}


_NOTHING = {name: 0.0 for name in COLLECTIVE_TERMS if name != CORRECTION}


def find_collective(
    arch: ArchSpec,
    what: str,
    message_bytes: int,
    num_ranks: int,
    dtype: str | None,
    library: str | None,
    interconnect: str | None,
    ranks_per_node: int | None,
    network_bytes: int | None,
) -> CollectiveResult:
    """Return the time of a collective; arguments and errors as of `GEMMEvaluator.evaluate_collective`."""
    problem = CollectiveProblem(
        what,
        message_bytes,
        num_ranks,
        DType.BF16 if dtype is None else parse_dtype(dtype),
        ranks_per_node,
        network_bytes,
    )
    whose = _words_of(arch)
    word = next(iter(reversed(whose))) if library is None else library
    check_word("library", word, tuple(whose))
    library = whose[word]
    if not isinstance(arch, GpuSpec):
        return _between_chips(arch, problem)
    link = collective.link_of(arch)
    if interconnect is not None:
        link = link.in_box(interconnect)
    nodes = nodes_of(problem, link, arch.name)
    coefficients, origin = collective.collective_coefficients(arch, link)
    if nodes.num_nodes > 1:
        return _between_nodes(arch, link, nodes, problem)
    algorithm, latency_us, ends_us, terms, source = "none", 0.0, (0.0, 0.0), _NOTHING, source_of(origin, 0.0, 0.0)
    if problem.num_ranks > 1:
        cost = collective.collective_cost(link, coefficients, library, problem)
        algorithm, terms = cost.algorithm, cost.breakdown
        latency_us = physics_us = float(cost.terms.latency_us)
        curve = collective.collective_curve(arch, link, library, problem)
        corrected_us, low_frac, high_frac = curve.at(problem.message_bytes)
        if curve.is_corrected:
            latency_us = corrected_us
            terms = {**terms, CORRECTION: latency_us - physics_us}
        ends_us = latency_us * low_frac, latency_us * high_frac
        source = source_of(origin, latency_us, physics_us)
    return CollectiveResult(
        problem, arch.name, word, latency_us, *ends_us, algorithm, FrozenDict(terms), link.gb_per_s, link.topology,
        "analytic" if problem.what == "send" else source, origin.text, collective.COLLECTIVE_MODEL_VERSION,
    )  # fmt: skip


def _between_nodes(arch: GpuSpec, link: Interconnect, nodes: Nodes, problem: CollectiveProblem) -> CollectiveResult:
    network = link.network
    assert network is not None
    coefficients, origin = collective.collective_coefficients(arch, link)
    cost = network_cost(link, coefficients, problem, nodes)
    return CollectiveResult(
        problem, arch.name, cost.library, cost.latency_us, cost.latency_us / NETWORK_SPREAD,
        cost.latency_us * NETWORK_SPREAD, cost.algorithm, FrozenDict(cost.breakdown), link.gb_per_s, link.topology,
        "analytic", f"in a node {origin.text}", collective.COLLECTIVE_MODEL_VERSION, nodes.num_nodes, network.kind,
        network.gb_per_s,
    )  # fmt: skip


def _between_chips(arch: MulticoreSpec, problem: CollectiveProblem) -> CollectiveResult:
    """Return the time of a collective between multi-core chips: hops one after the other, and bytes over the link.

    A switch takes log2 hops (twice for an all-reduce), a ring one to each other chip. On a ring the bytes of an
    all-to-all pass a quarter of it in the mean, and a send has the link to one neighbour, half the rate.
    """
    link, ranks, what = arch.interconnect, problem.num_ranks, problem.what
    if link is None:
        raise UnsupportedError(
            f"{arch.name} does not say what joins it to other chips: give its YAML an interconnect ("
            f"{', '.join(ChipLink.model_fields)})"
        )
    if ranks > min(link.num_chips, problem.ranks_per_node or ranks):
        raise UnsupportedError(
            f"the link of {arch.name} joins at most {link.num_chips} chips, and no network is modelled; got {problem}"
        )
    is_ring, passes = link.topology == "ring", 2 if what == "all_reduce" else 1
    hops = passes * (ranks - 1 if is_ring else math.ceil(math.log2(ranks)))
    detour = {"all_to_all": max(1.0, ranks / 4), "send": 2.0}.get(what, 1.0) if is_ring else 1.0
    link_us = problem.wire_bytes * detour / bytes_per_us(link.gb_per_s)
    terms = _NOTHING | {"hops_us": hops * link.latency_us, "link_us": link_us}
    latency_us = sum(terms.values())
    return CollectiveResult(
        problem, arch.name, CHIP_LINK, latency_us, latency_us / NETWORK_SPREAD, latency_us * NETWORK_SPREAD,
        link.topology if ranks > 1 else "none", FrozenDict(terms), link.gb_per_s, link.topology, "analytic",
        f"none: rate and latency of the spec, and an assumed interval, {NETWORK_SPREAD:g} times either way",
        collective.COLLECTIVE_MODEL_VERSION,
    )  # fmt: skip


_MAX_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryBoundResult(Result):
    """The time of a kernel that reads and writes some bytes, and computes next to nothing."""

    arch_name: str
    read_bytes: float
    write_bytes: float
    latency_us: float
    low_us: float
    high_us: float
    breakdown: FrozenDict[str, float]
    source: str

    def __repr__(self) -> str:
        return f"<MemoryBoundResult {self.num_bytes:,.0f} bytes on {self.arch_name}: {self.latency_us:.4g} us>"

    @property
    def num_bytes(self) -> float:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes

    @property
    def gb_per_s(self) -> float:
        """Achieved rate, in 1e9 bytes/s."""
        return self.num_bytes / self.latency_us / 1e3


def memory_bound(
    arch: ArchSpec, read_bytes: float, write_bytes: float, row_elements: int = 0, num_rows: int = 0, what: str = ""
) -> MemoryBoundResult:
    """Return the time of such a kernel; arguments and errors as of `GEMMEvaluator.evaluate_memory_bound`."""
    for name, value in (("read_bytes", read_bytes), ("write_bytes", write_bytes)):
        number = plain_number(value)
        if number is None or not 0 <= number <= _MAX_BYTES:
            raise InvalidProblemError(f"{name} must be in 0..2**60, got {shown(value)}")
    as_integer("row_elements", row_elements, 0, MAX_DIM)
    as_integer("num_rows", num_rows, 0, MAX_DIM)
    return memory_bounds(arch, [(read_bytes, write_bytes, row_elements, num_rows, what)])[0]


def memory_bounds(
    arch: ArchSpec, kernels: Sequence[tuple[float, float, int, int, str]], *, is_under_load: bool = False
) -> tuple[MemoryBoundResult, ...]:
    """Return what many such kernels take, each given by checked arguments of `memory_bound`, in one batch.

    `is_under_load`: kernels run in between that keep a GPU busy, so that its SMs have their boost clock, not their
    highest one. Engines' kernels were timed so.
    """
    results: dict[int, MemoryBoundResult] = {}
    places: dict[str, list[int]] = {}
    for place, kernel in enumerate(kernels):
        places.setdefault(memory_kernel(kernel[4]).library, []).append(place)
    for library, chosen in places.items():
        some = [kernels[i] for i in chosen]
        if isinstance(arch, GpuSpec):
            is_slower = is_under_load and library != ENGINES
            priced = _on_gpu(arch, library, some, arch.max_clock_ghz / arch.boost_clock_ghz if is_slower else 1.0)
        else:
            priced = _on_chip(arch, some)
        results |= zip(chosen, priced, strict=True)
    return tuple(results[place] for place in range(len(kernels)))


_Kernel = tuple[float, float, int, int, str]


def _on_chip(arch: Any, kernels: Sequence[_Kernel]) -> Iterator[MemoryBoundResult]:
    rate = bytes_per_us(arch.dram_gb_per_s * arch.dram_efficiency_frac)
    for read_bytes, write_bytes, *_more in kernels:
        values = (arch.launch_us, 0.0, (read_bytes + write_bytes) / rate)
        terms = FrozenDict(zip(memory_model.MEMORY_BOUND_TERMS, values, strict=True))
        ends = chip_interval(arch, sum(values))
        yield MemoryBoundResult(arch.name, read_bytes, write_bytes, sum(values), *ends, terms, "analytic")


def _on_gpu(arch: Any, library: str, kernels: Sequence[_Kernel], slower: float) -> Iterator[MemoryBoundResult]:
    """Yield the results of kernels whose ways to memory and waves take `slower` times as long as those timed."""
    check_carried(arch, "memory-bound kernels")
    coefficients, origin, learned = memory_model.memory_bound_model(arch, library)
    coefficients = coefficients | {name: coefficients[name] * slower for name in ("trip_us", "wave_us")}
    sizes = np.array(
        [memory_model.memory_bound_row(kernel[4], *kernel[:2], kernel[3], kernel[2]) for kernel in kernels], np.float64
    )
    terms = memory_model.memory_bound_terms(arch, coefficients, memory_model.MemoryBoundRows(*sizes.T))
    physics_us = sum(terms.values(), np.zeros(len(kernels)))
    answers = learned.answers(memory_model.memory_bound_columns(sizes, physics_us), physics_us)
    rate = bytes_per_us(arch.dram_gb_per_s)
    for (read_bytes, write_bytes, *_), of_terms, (factor, low, high, _), *each in zip(
        kernels, physics_us.tolist(), answers.tolist(), *(column.tolist() for column in terms.values()), strict=True
    ):
        least_us = max(read_bytes + write_bytes - arch.l2_bytes, 0.0) / rate  # by the data sheet
        us = max(of_terms * factor, min(of_terms, least_us))
        breakdown = FrozenDict(zip(memory_model.MEMORY_BOUND_TERMS, each, strict=True))
        if us != of_terms:
            breakdown = FrozenDict({**breakdown, CORRECTION: us - of_terms})
        source = source_of(origin, us, of_terms)
        yield MemoryBoundResult(arch.name, read_bytes, write_bytes, us, us * low, us * high, breakdown, source)


_SHOWN_FROM_US = 0.005


@dataclass(frozen=True, slots=True)
class MixerResult(Result):
    """The time of a kernel of linear or sparse attention, term by term.

    Attributes:
        bound: what limits: ``lines`` (chunks one after the other, or too few CTAs), ``bytes`` or ``launch``.
        library: whose kernel it is.
        origin: where its coefficients come from, in words.
    """

    problem: MixerProblem
    arch_name: str
    latency_us: float
    low_us: float
    high_us: float
    breakdown: FrozenDict[str, float]
    bound: str
    library: str
    source: str
    origin: str

    def explain(self) -> str:
        """Return a short text: how long, what bounds it, and where the time goes."""
        lines = [
            f"{self.problem} on {self.arch_name}: {time_text(self.latency_us)}, bound by {self.bound}.",
            f"Kernel: {MIXER_KERNELS[self.problem.kernel].meaning}, of {self.library}; coefficients {self.origin}.",
            interval_line(self.low_us, self.high_us),
            *term_lines(self.breakdown, MIXER_TERMS, _SHOWN_FROM_US),
        ]
        return "\n".join(lines)


def mixer_results(arch: ArchSpec, problems: Sequence[MixerProblem], library: str | None) -> list[MixerResult]:
    """Return the times of kernels by a library's coefficients, or by those of the next library that has the kernel."""
    if library is not None:
        check_word("library", library, MIXER_LIBRARIES)
    check_carried(arch, "linear and sparse attention")
    if not isinstance(arch, GpuSpec):
        raise UnsupportedError(f"linear and sparse attention were timed on NVIDIA GPUs alone, and {arch.name} is none")
    by_kernel: dict[str, list[int]] = {}
    for index, problem in enumerate(problems):
        by_kernel.setdefault(problem.kernel, []).append(index)
    results: dict[int, MixerResult] = {}
    for kernel, chosen in by_kernel.items():
        results |= zip(chosen, _of_kernel(arch, kernel, [problems[i] for i in chosen], library), strict=True)
    return [results[index] for index in range(len(problems))]


def _of_kernel(
    arch: GpuSpec, kernel: str, problems: Sequence[MixerProblem], library: str | None
) -> Iterator[MixerResult]:
    model = mixer_model(arch, kernel, library)
    terms = mixer_terms(arch, model.coefficients, mixer_rows(arch, problems))
    source = source_of(model.origin, 0.0, 0.0)
    for problem, values in zip(problems, np.array(list(terms.values())).T.tolist(), strict=True):
        breakdown = FrozenDict(zip(MIXER_TERMS, values, strict=True))
        latency_us = sum(values)
        largest = max(MIXER_TERMS, key=lambda name: breakdown[name])
        bound = {"fixed_us": "launch", "lines_us": "lines", "bytes_us": "bytes"}[largest]
        low_us, high_us = (latency_us * end for end in model.ends)
        yield MixerResult(
            problem, arch.name, latency_us, low_us, high_us, breakdown, bound, model.library, source, model.origin.text
        )
