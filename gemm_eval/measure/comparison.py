"""Our kernels beside others on the same GEMMs: cuBLAS with weights of 16 bits, and an engine measured before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gemm_eval.arch import data_root
from gemm_eval.measure.data_set import meta_path, read_timings

__all__ = ["ComparedGemm", "compare_kernels"]

_SIZES = ["M", "K", "N"]
_GROUP_SIZE = 128
_ENGINE = {"fp16": "humming_fp16", "bf16": "humming_bf16"}
_BURST, _SUSTAINED = "coldW-burst", "coldW"


class ComparedGemm(NamedTuple):
    """One GEMM; None: not measured.

    Attributes:
        M, K, N: sizes.
        mode, group_size: of our weights; the latter is -1 with one scale a column.
        num_configs: of ours that were timed.
        best_us, best: our fastest kernel and its config in short.
        cublas_us: dense weights.
        humming_us: another W4A16 engine (arch/measured/.../engines), groups of 128.
        read_us: one pass over the bytes of the weights, in the run of our kernels.
    """

    M: int
    K: int
    N: int
    mode: str
    group_size: int
    num_configs: int
    best_us: float
    best: str
    cublas_us: float | None
    humming_us: float | None
    read_us: float | None


def compare_kernels(ours: Path, cublas: Path | None, gpu: str, dtype: str) -> list[ComparedGemm]:
    """Return a line for each GEMM of our data set, by columns, K and M.

    Args:
        ours: data set of our kernels.
        cublas: data set of cuBLAS; None: there is none.
        gpu: arch name; says whose engines are compared.
        dtype: of the activations.
    """
    gemms: dict[tuple[Any, ...], list[dict[Any, Any]]] = {}
    for row in read_timings(ours).to_dict("records"):
        gemms.setdefault(tuple(row[name] for name in ("N", "K", "M", "mode", "group_size")), []).append(row)
    dense = {} if cublas is None else _times(read_timings(cublas))
    engine, reads = _engine_times(gpu, dtype), _read_times(ours)
    compared = []
    for (n, k, m, mode, group_size), rows in sorted(gemms.items()):
        best = min(rows, key=lambda row: float(row["latency_us"]))
        is_as_engine = mode == "group" and group_size == _GROUP_SIZE
        compared.append(
            ComparedGemm(
                M=m, K=k, N=n, mode=mode, group_size=group_size, num_configs=len(rows), best_us=best["latency_us"],
                best=_in_short(best), cublas_us=dense.get((m, k, n)),
                humming_us=engine.get((m, k, n)) if is_as_engine else None,
                read_us=reads.get(f"{n} x {k}") if is_as_engine else None,
            )
        )  # fmt: skip
    return compared


def _in_short(row: Mapping[Any, Any]) -> str:
    work = {"split_k": f" split {row['split_k']}", "stream_k": " stream-K"}.get(row["decomposition"], "")
    return (
        f"{row['family']} {row['cta_m']}x{row['cta_n']}x{row['cta_k']} {row['cluster_m']}x{row['cluster_n']} "
        f"{row['num_stages']} {row['schedule']}{work}"
    )


def _read_times(ours: Path) -> dict[str, float]:
    """By "N x K", of groups of 128 weights."""
    path = meta_path(ours)
    meta = yaml.safe_load(path.read_text("utf-8")) if path.is_file() else {}
    times: dict[str, float] = meta.get("runner", {}).get("single_pass_read_us", {})
    return times


def _engine_times(gpu: str, dtype: str) -> dict[tuple[int, int, int], float]:
    """Cold weights; bursts where there are any, else sustained replays."""
    path = data_root() / "measured" / gpu / "engines" / "w4a16.csv"
    if not path.is_file():
        return {}
    frame = read_timings(path)
    frame = frame[(frame["engine"] == _ENGINE[dtype]) & (frame["group_size"] == _GROUP_SIZE)]
    return _times(frame[frame["l2_state"] == _SUSTAINED]) | _times(frame[frame["l2_state"] == _BURST])


def _times(frame: Any) -> dict[tuple[int, int, int], float]:
    """Median latency by M, K, N."""
    times: dict[tuple[int, int, int], float] = frame.groupby(_SIZES)["latency_us"].median().to_dict()
    return times
