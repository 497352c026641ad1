"""All kernels of one GEMM with 4-bit weights on this machine's GPU, and data sets of them beside cuBLAS."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gemm_eval.arch import data_root
from gemm_eval.device import Timing, TimingProtocol, measure_floor_us
from gemm_eval.errors import GemmEvalError
from gemm_eval.mapping import KernelConfig
from gemm_eval.measure.data_set import meta_path, read_timings
from gemm_eval.measure.runner import BuiltKernel, measure_shape
from gemm_eval.measure.shapes import KernelItem, QuantShape
from gemm_eval.measure.w4a16 import W4A16Runner, packed_sizes
from gemm_eval.progress import progress_bar

_POOL_BYTES = 1 << 30
_NUM_FINALISTS = 10


class ProfiledKernel(NamedTuple):
    """A kernel: its time, and its build and launch."""

    config: KernelConfig
    timing: Timing
    built: BuiltKernel


@dataclass(frozen=True)
class Profile:
    """All kernels of one GEMM.

    Attributes:
        gemm: sizes and weights.
        kernels: fastest first; the first ones, and the choices asked about, are timed by the full protocol.
        errors: why a config could not be timed.
    """

    gemm: QuantShape
    kernels: tuple[ProfiledKernel, ...]
    errors: dict[KernelConfig, str]

    @property
    def bytes_moved(self) -> int:
        """Packed weights and scales, A and C, once each."""
        sizes = packed_sizes(self.gemm)
        return sizes.qweight_bytes + sizes.scales_bytes + 2 * self.gemm.M * (self.gemm.K + self.gemm.N)

    def find(self, config: KernelConfig) -> tuple[int, ProfiledKernel] | None:
        """Return place (from 0) and time of a config, or None if it was not timed."""
        return next(((place, kernel) for place, kernel in enumerate(self.kernels) if kernel.config == config), None)


def profile_kernels(
    runner: W4A16Runner, items: Sequence[KernelItem], choices: Sequence[KernelConfig], *, l2: str = "cold",
    progress: bool | None = None,
) -> Profile:  # fmt: skip
    """Time every item by short replays, then the fastest ones and `choices` by the full protocol.

    Args:
        items: the kernels of one GEMM.
        choices: configs among them whose times are to be exact whatever their place.
        progress: show progress on stderr; None: if it takes over a second.

    Raises:
        GemmEvalError: there is no item, or none could be timed, or a check failed.
    """
    if not items:
        raise GemmEvalError("no kernel can run this GEMM on this GPU")
    runner.prepare(items)
    runner.allocate(items, _POOL_BYTES)
    runner.check()
    floor_us = measure_floor_us(runner)
    profiled: dict[KernelConfig, ProfiledKernel] = {}
    errors: dict[KernelConfig, str] = {}
    best_us: float | None = None
    with progress_bar(len(items) + _NUM_FINALISTS, "kernels", progress) as advance:
        for item in items:
            try:
                timing = measure_shape(runner, item, TimingProtocol.quick(l2=l2), floor_us=floor_us, best_us=best_us)
                profiled[item.config] = ProfiledKernel(item.config, timing, runner.built(item))
                best_us = min(timing.latency_us, best_us or timing.latency_us)
            except Exception as error:  # other kernels may work: what is wrong with this one is told at the end
                errors[item.config] = f"{type(error).__name__}: {error}"
            advance(1)
        if not profiled:
            raise GemmEvalError(f"no kernel could be timed; the first: {next(iter(errors.values()))}")
        quick = sorted(profiled, key=lambda config: profiled[config].timing.latency_us)
        for config in dict.fromkeys([*quick[:_NUM_FINALISTS], *(config for config in choices if config in profiled)]):
            item = items[0]._replace(config=config)
            timing = measure_shape(runner, item, TimingProtocol(l2=l2), floor_us=floor_us)
            profiled[config] = profiled[config]._replace(timing=timing)
            advance(1)
    ranked = sorted(profiled.values(), key=lambda kernel: kernel.timing.latency_us)
    return Profile(QuantShape(*items[0][:6]), tuple(ranked), errors)


_SIZES = ["M", "K", "N"]
_GROUP_SIZE = 128
_ENGINE = {"fp16": "humming_fp16", "bf16": "humming_bf16"}
_BURST, _SUSTAINED = "coldW-burst", "coldW"


class ComparedGemm(NamedTuple):
    """A GEMM on our kernels and others; None: not measured.

    Attributes:
        mode, group_size: of our weights; the latter is -1 with one scale a column.
        best_us, best: our fastest kernel of `num_configs`, and its config in short.
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
    """Return a line for each GEMM of our data set, by columns, K and M, beside cuBLAS and the engines of that GPU."""
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
    words = "{family} {cta_m}x{cta_n}x{cta_k} {cluster_m}x{cluster_n} {num_stages} {schedule}"
    return words.format(**row) + work


def _read_times(ours: Path) -> dict[str, float]:
    """Return the time of one pass over weights in groups of 128, by "N x K"."""
    path = meta_path(ours)
    meta = yaml.safe_load(path.read_text("utf-8")) if path.is_file() else {}
    return meta.get("runner", {}).get("single_pass_read_us", {})


def _engine_times(gpu: str, dtype: str) -> dict[tuple[int, int, int], float]:
    """Return times with cold weights by M, K, N: bursts where there are any, else sustained replays."""
    path = data_root() / "measured" / gpu / "engines" / "w4a16.csv"
    if not path.is_file():
        return {}
    frame = read_timings(path)
    frame = frame[(frame["engine"] == _ENGINE[dtype]) & (frame["group_size"] == _GROUP_SIZE)]
    return _times(frame[frame["l2_state"] == _SUSTAINED]) | _times(frame[frame["l2_state"] == _BURST])


def _times(frame: Any) -> dict[tuple[int, int, int], float]:
    """Return the median latency by M, K, N."""
    return frame.groupby(_SIZES)["latency_us"].median().to_dict()
