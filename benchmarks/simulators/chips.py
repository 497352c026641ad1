"""Chips and GEMMs that every simulator can express, what each of them counts, and our model's counts."""

from __future__ import annotations

from typing import NamedTuple

from gemm_eval.arch import MulticoreSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
from gemm_eval.units import cycles_per_us

INPUT_BYTES = 2
"""Bytes of one element of A and of B: fp16."""
OUTPUT_BYTES = 4
"""Bytes of one element of C, finished or not: fp32. ZigZag keeps a finished C in SRAM in its last type, SCALE-Sim knows
one width an operand; with a narrower output the three would not hold the same tiles."""


class Chip(NamedTuple):
    """A core with a weight-stationary array: `rows` along K, `columns` along N, a row of A enters each cycle.

    Attributes:
        name: as `--chip` takes it.
        rows, columns: multipliers of the array.
        sram_bytes: for A, B and C together, double-buffered.
        dram_bytes_per_cycle: of the one DRAM interface, reads and writes together.
        frequency_ghz: clock.
    """

    name: str
    rows: int
    columns: int
    sram_bytes: int
    dram_bytes_per_cycle: int
    frequency_ghz: float = 1.0

    @property
    def spec(self) -> MulticoreSpec:
        """The chip in our words. Nothing is launched, aligned or reduced: the others know none of that."""
        return MulticoreSpec(
            name=self.name, num_cores=1, frequency_ghz=self.frequency_ghz,
            cube_m=1, cube_k=self.rows, cube_n=self.columns, cube_steps_per_cycle={DType.FP16: 1.0},
            sram_bytes=self.sram_bytes, input_buffers=2, output_buffers=2,
            dram_gb_per_s=self.dram_bytes_per_cycle * self.frequency_ghz, reduction="none",
        )  # fmt: skip

    def us(self, cycles: float) -> float:
        """Time of `cycles`, in microseconds."""
        return cycles / (self.frequency_ghz * 1e3)


class Gemm(NamedTuple):
    """C[M,N] = A[M,K] x B[K,N]."""

    M: int
    K: int
    N: int

    @property
    def once(self) -> Traffic:
        """Bytes when every element moves once: no mapping moves less."""
        return Traffic(self.M * self.K * INPUT_BYTES, self.K * self.N * INPUT_BYTES, self.M * self.N * OUTPUT_BYTES)


class Traffic(NamedTuple):
    """DRAM bytes by operand; C has partial results too, both ways."""

    a_bytes: float
    b_bytes: float
    c_bytes: float

    @property
    def total(self) -> float:
        """Bytes of all three."""
        return sum(self)


class Counted(NamedTuple):
    """The counts of one simulator for a GEMM on a chip.

    Attributes:
        least: DRAM traffic of the mapping that moves least, of those it considers.
        compute_cycles: of the array, waiting for nothing.
        cycles: all, waiting for DRAM too, of the fastest mapping that it considers; None: it did not say.
        moved: DRAM traffic of that mapping.
        exposed_cycles: of these cycles, loads before the first computation and stores after the last one.
        mapping: in its own words.
    """

    least: Traffic
    compute_cycles: float
    cycles: float | None
    moved: Traffic
    exposed_cycles: float
    mapping: str


CHIPS = (
    Chip("array32", 32, 32, 256 * 1024, 64),
    Chip("array32-small", 32, 32, 64 * 1024, 64),
    Chip("array128", 128, 128, 1024 * 1024, 256),
)

GEMMS = (
    # square
    Gemm(128, 128, 128), Gemm(256, 256, 256), Gemm(384, 384, 384), Gemm(512, 512, 512),
    # tall: M above the rest
    Gemm(1024, 64, 64), Gemm(2048, 128, 128), Gemm(1024, 256, 128), Gemm(1536, 128, 256), Gemm(768, 512, 128),
    # flat: a few rows of A
    Gemm(1, 1024, 1024), Gemm(8, 512, 1024), Gemm(16, 1024, 512), Gemm(64, 256, 1024), Gemm(32, 512, 2048),
    # wide: N above the rest
    Gemm(128, 128, 1024), Gemm(128, 256, 1536), Gemm(256, 128, 2048), Gemm(64, 64, 4096),
    # K above the rest
    Gemm(64, 2048, 64), Gemm(128, 2048, 128), Gemm(256, 1024, 128), Gemm(128, 4096, 64), Gemm(256, 2048, 256),
    # edges that no array size divides
    Gemm(100, 100, 100), Gemm(250, 500, 250), Gemm(127, 257, 129), Gemm(333, 200, 450), Gemm(500, 1000, 70),
    Gemm(97, 1000, 300), Gemm(720, 360, 180),
)  # fmt: skip


def find_chips(names: list[str]) -> list[Chip]:
    """Return the chips of these names; all of them for none.

    Raises:
        InvalidOptionError: a name is not one of `CHIPS`.
    """
    known = {chip.name: chip for chip in CHIPS}
    for name in names:
        if name not in known:
            raise InvalidOptionError(f"--chip must be one of {', '.join(known)}, got {name!r}")
    return [known[name] for name in names] or list(CHIPS)


_SLOW_DRAM = 1e-9
"""Share of the bandwidth with which latency is bytes: the fastest mapping is then the one that moves least."""


def count_ours(chip: Chip, gemm: Gemm) -> Counted:
    """Return what the best mappings of a GEMM cost: the fastest one, and the one that moves least."""
    fastest = _evaluate(chip, gemm, 1.0)
    least = _evaluate(chip, gemm, _SLOW_DRAM)
    per_us = cycles_per_us(chip.frequency_ghz)
    busy_us = max(fastest.compute_us, fastest.dram_us)
    return Counted(
        least=_traffic(least),
        compute_cycles=fastest.compute_us * per_us,
        cycles=fastest.latency_us * per_us,
        moved=_traffic(fastest),
        exposed_cycles=(fastest.latency_us - busy_us) * per_us,
        mapping=str(fastest.mapping),
    )


def _evaluate(chip: Chip, gemm: Gemm, share: float) -> GEMMResult:
    spec = chip.spec.with_(dram_gb_per_s=chip.spec.dram_gb_per_s * share)
    evaluator = GEMMEvaluator(spec, disk_cache=False)
    return evaluator.evaluate(1, *gemm, input_dtype="fp16", output_dtype="fp32")


def _traffic(result: GEMMResult) -> Traffic:
    moved = result.traffic
    c_bytes = moved["c_store_bytes"] + moved["c_spill_bytes"] + moved["c_refill_bytes"]
    return Traffic(moved["a_bytes"], moved["b_bytes"], c_bytes)
