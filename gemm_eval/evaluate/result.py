"""`GEMMResult`: what an evaluation returns, whatever the model behind it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from gemm_eval.frozen import FrozenDict
from gemm_eval.units import tflop_per_s
from gemm_eval.workload import GemmProblem

if TYPE_CHECKING:
    from gemm_eval.arch import ArchSpec
    from gemm_eval.evaluate.backend import Backend
    from gemm_eval.evaluate.evaluator import GEMMEvaluator
    from gemm_eval.evaluate.result_origin import ResultOrigin
    from gemm_eval.mapping import KernelConfig, MulticoreMapping


@dataclass(frozen=True, slots=True)
class GEMMResult:
    """The best mapping of a GEMM on an arch (or a mapping that the user gave), its cost, and why.

    Attributes:
        problem: the GEMM.
        arch_name: name of the arch.
        latency_us: time of the whole GEMM, in microseconds.
        physics_us: what the terms of the model alone say, before what timings showed beyond them is added; the same as
            `latency_us` where nothing is corrected.
        low_us, high_us: the interval around `latency_us` that holds 80% of measured times, by what was held out of
            fits; None for multi-core chips, whose calibrations keep the errors of sets of rows, not of single ones.
        compute_us: time that the compute units of the slowest core (GPU: the tensor cores) need, overlap left aside.
        dram_us: time that DRAM needs for the slowest core (GPU: for all), overlap left aside.
        flop: operations, a multiply-accumulate being two.
        dram_bytes: DRAM traffic of the whole chip, reads and writes.
        utilization_frac: achieved over the highest FLOP/s of the whole chip, for the input type: at most 1.
        bound: what limits: ``compute`` (matrix unit), ``vector``, ``dram``, ``noc``, ``reduction`` or ``launch``; on a
            GPU ``compute``, ``dequant``, ``latency``, ``l2``, ``dram``, ``reduction``, ``launch`` or ``store``.
        mapping: the choices behind these numbers: a `MulticoreMapping`, or the `KernelConfig` of a GPU kernel.
        breakdown: microseconds by term; they add up to `latency_us`. `hidden_us` is negative: what overlaps;
            `correction_us`, on GPUs, has either sign.
        traffic: DRAM bytes by operand; they add up to `dram_bytes`.
        energy_pj: energy in picojoules, or None when the arch gives no figures.
        sram_used_bytes: SRAM of one core that the tiles occupy, buffers included; on a GPU the shared memory of one SM
            that its CTAs occupy.
        active_cores: cores that have work; on a GPU SMs.
        options: what was asked besides the problem: library, l2 and clock on a GPU, and correction where it was turned
            off; nothing on a multi-core chip.
        source: where the numbers come from: ``analytic``, ``calibrated``, ``corrected`` (calibrated, and what timings
            showed beyond the terms added) or ``measured``.
        model_version: version of the cost model.
        is_exhaustive: the mapping is the best of its whole space (False for a mapping that the user gave).
        num_candidates: mappings whose cost was computed; bounds dismissed the rest.
        num_refused: choices dismissed, by reason.
    """

    problem: GemmProblem
    arch_name: str
    latency_us: float
    physics_us: float
    low_us: float | None
    high_us: float | None
    compute_us: float
    dram_us: float
    flop: int
    dram_bytes: int
    utilization_frac: float
    bound: str
    mapping: MulticoreMapping | KernelConfig
    breakdown: FrozenDict[str, float]
    traffic: FrozenDict[str, int]
    energy_pj: float | None
    sram_used_bytes: int
    active_cores: int
    options: FrozenDict[str, Any]
    source: str
    model_version: str
    is_exhaustive: bool
    num_candidates: int
    num_refused: FrozenDict[str, int]
    _origin: ResultOrigin = field(repr=False, compare=False)

    def __repr__(self) -> str:
        options = "".join(f", {name} {value}" for name, value in self.options.items())
        return (
            f"<GEMMResult {self.problem} on {self.arch_name}{options}: {self.latency_us:.4g} us, bound {self.bound}, "
            f"{self.source}>"
        )

    def _repr_html_(self) -> str:
        from gemm_eval.evaluate.html import result_html

        return result_html(self)

    @property
    def arch(self) -> ArchSpec:
        """The architecture."""
        return self._origin.arch

    @property
    def backend(self) -> Backend:
        """The cost model and search behind it."""
        return self._origin.backend

    @property
    def evaluator(self) -> GEMMEvaluator:
        """A new evaluator with the arch and options of the one that made it."""
        return self._origin.on(self.arch)

    @property
    def tflop_per_s(self) -> float:
        """Achieved rate in 1e12 FLOP/s."""
        return tflop_per_s(self.flop, self.latency_us)

    @property
    def dram_gb_per_s(self) -> float:
        """Achieved DRAM bandwidth in 1e9 bytes/s."""
        return self.dram_bytes / self.latency_us / 1e3

    def explain(self) -> str:
        """Return a short text: what bounds this GEMM, where the time goes, which spec change would help most."""
        from gemm_eval.evaluate.explain import explain_result

        return explain_result(self, self._origin)

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, ready for JSON."""
        data: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "problem":
                words = {name: _plain(word) for name, word in value.types.words.items()}
                groups = None if value.row_groups is None else list(value.row_groups)
                data["problem"] = dict(zip("GMKN", value.sizes, strict=True)) | {"row_groups": groups} | words
            elif item.name == "mapping":
                data["mapping"] = {name: _plain(choice) for name, choice in value._asdict().items()}
            elif item.name != "_origin":
                data[item.name] = dict(value) if isinstance(value, FrozenDict) else value
        data["tflop_per_s"] = self.tflop_per_s
        data["dram_gb_per_s"] = self.dram_gb_per_s
        return data


def _plain(value: Any) -> Any:
    if isinstance(value, enum.IntEnum):
        return value.name
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    return str(value) if isinstance(value, str) else value
