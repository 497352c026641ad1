"""What is written of this machine: its spec, its timings with their meta file, its bandwidths, and all facts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gemm_eval.measure.host.campaign import HostMeasurement
from gemm_eval.measure.host.spec import can_be_spec, chip_name, host_spec_text
from gemm_eval.storage import write_text
from gemm_eval.version import __version__

__all__ = ["HostFiles", "write_host_files"]

_COLUMNS = (
    "chip", "dtype", "M", "K", "N", "latency_us", "min_us", "spread_frac", "num_samples", "calls_per_sample",
    "num_disturbed",
)  # fmt: skip


class HostFiles(NamedTuple):
    """Where the files of a measurement lie.

    Attributes:
        spec: for `load_arch`; None: the model has no type like that of the timings.
        timings: a table as `gemm-eval calibrate multicore` reads them.
        meta: what stands beside it.
        bandwidth: table of streams.
        facts: all that is known of the CPU and BLAS.
    """

    spec: Path | None
    timings: Path
    meta: Path
    bandwidth: Path
    facts: Path


def write_host_files(
    folder: Path, measurement: HostMeasurement, date: str, fitted: Mapping[str, float] | None = None
) -> HostFiles:
    """Write a measurement of this machine into a folder; no file is ever half-written.

    Args:
        folder: is made if it is missing.
        measurement: what was measured.
        date: of it, YYYY-MM-DD.
        fitted: coefficients of the spec that were fitted on the timings; None: none were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chip = chip_name(measurement)
    files = HostFiles(
        spec=folder / f"{chip}.yaml" if can_be_spec(measurement.dtype) else None,
        timings=folder / f"{chip}-{measurement.dtype}.csv",
        meta=folder / f"{chip}-{measurement.dtype}.meta.yaml",
        bandwidth=folder / f"{chip}-bandwidth.csv",
        facts=folder / f"{chip}-facts.yaml",
    )
    rows = (
        (
            chip, measurement.dtype, *timing.shape, f"{timing.latency_us:.3f}", f"{timing.min_us:.3f}",
         f"{timing.spread_frac:.4f}", timing.num_samples, timing.calls_per_sample, timing.num_disturbed)
        for timing in measurement.timings
    )  # fmt: skip
    write_text(files.timings, _table(_COLUMNS, rows))
    write_text(files.meta, _yaml(_meta(measurement, date)))
    streams = (
        (point.kind, point.num_threads, point.working_set_bytes, f"{point.gb_per_s:.3f}", f"{point.spread_frac:.4f}")
        for point in measurement.bandwidth
    )
    write_text(
        files.bandwidth, _table(("kind", "num_threads", "working_set_bytes", "gb_per_s", "spread_frac"), streams)
    )
    write_text(files.facts, _yaml(_facts(measurement, date)))
    if files.spec is not None:
        write_text(files.spec, host_spec_text(measurement, date, fitted))
    return files


def _meta(measurement: HostMeasurement, date: str) -> dict[str, Any]:
    facts = measurement.facts
    pinned = f"on cores {', '.join(map(str, facts.cpus))}" if facts.cpus else "not pinned"
    return {
        "source": f"gemm-eval {__version__} measure host on {facts.title}, {date}",
        "licence": "of who measured",
        "what": f"{measurement.blas}, {facts.num_cores.value} threads {pinned}; operands warm; medians of samples from "
        "several passes in shuffled order",
    }


def _facts(measurement: HostMeasurement, date: str) -> dict[str, Any]:
    facts = measurement.facts

    def known(fact: Any) -> Any:
        return None if fact is None else {"value": fact.value, "kind": str(fact.kind), "source": fact.source}

    return {
        "date": date,
        "gemm_eval": __version__,
        "title": facts.title,
        "machine": facts.machine,
        "system": facts.system,
        "is_virtual": facts.is_virtual,
        "memory_bytes": facts.memory_bytes,
        "num_cores": known(facts.num_cores),
        "cpus": list(facts.cpus),
        "simd_bits": known(facts.simd_bits),
        "nominal_ghz": known(facts.nominal_ghz),
        "clock_ghz": known(facts.clock_ghz),
        "caches": [cache._asdict() for cache in facts.caches],
        "caches_source": facts.caches_source,
        "blas": measurement.blas._asdict(),
        "launch_us": measurement.launch.latency_us,
        "num_timings": len(measurement.timings),
    }


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
