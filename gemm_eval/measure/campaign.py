"""A measurement of many GEMMs: order, budget, progress, a work file so that nothing is lost, and the data set."""

import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from gemm_eval.device import TimingProtocol, describe_gpu, measure_floor_us, read_gpu_state
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels import WeightMode
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.measure import shapes as shape_sets
from gemm_eval.measure.cublas import CublasRunner
from gemm_eval.measure.data_set import add_ranks, columns_of, cutlass_tile, import_pandas, meta_for, write_timings
from gemm_eval.measure.runner import Runner, measure_shape, trace_kernels
from gemm_eval.measure.shapes import DrawnShape, GemmItem, GemmShape, GroupedShape, KernelItem
from gemm_eval.measure.torch_gemms import CublasLtRunner, GroupedRunner, TorchRunner
from gemm_eval.measure.w4a16 import W4A8Runner, W4A16Runner
from gemm_eval.progress import progress_bar
from gemm_eval.storage import write_whole
from gemm_eval.words import check_word

_SYNC_EVERY_S = 1.0
_KEYS = {"kernel": "launch"}  # of values that are not called as their kind


class WorkFile:
    """Timings, kernels and errors by item, and GPU states and plans, of one data set in the making."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.timings: dict[GemmItem, dict[str, Any]] = {}
        self.kernels: dict[GemmItem, dict[str, Any]] = {}
        self.errors: dict[GemmItem, str] = {}
        self.states: list[dict[str, Any]] = []
        self.plans: list[str] = []
        self._settings: list[dict[str, Any]] = []
        self._synced_s = 0.0
        if path.exists():
            self._read()
        if not self._settings:
            self.add("settings", settings)
        elif self._settings[0] != json.loads(json.dumps(settings)):
            raise GemmEvalError(
                f"{path} was started with other settings: {self._settings[0]}; now: {settings}; move it away"
            )

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                if number < len(lines):
                    raise GemmEvalError(f"{self.path}:{number} is damaged: {error}") from None
                write_whole(self.path, "".join(f"{line}\n" for line in lines[:-1]).encode())
                return
        if text and not text.endswith("\n"):
            write_whole(self.path, f"{text}\n".encode())

    def _take(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        value = entry[_KEYS.get(kind, kind)]
        lists: dict[str, list[Any]] = {"settings": self._settings, "state": self.states, "plan": self.plans}
        if kind in lists:
            lists[kind].append(value)
            return
        by_item: dict[str, Any] = {"timing": self.timings, "kernel": self.kernels, "error": self.errors}
        item = _item(entry["shape"])
        by_item[kind][item] = value
        if kind == "timing":
            self.errors.pop(item, None)

    def add(self, kind: str, value: Any, item: GemmItem | None = None) -> None:
        """Keep a timing, a kernel, an error, a GPU state or a plan, of an item where it has one."""
        of_item = {} if item is None else {"shape": list(item)}
        entry = {"kind": kind, **of_item, _KEYS.get(kind, kind): value}
        self._take(entry)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            if time.monotonic() - self._synced_s > _SYNC_EVERY_S:  # only a machine that dies loses what is not synced
                os.fsync(file.fileno())
                self._synced_s = time.monotonic()


def _item(values: list[Any]) -> GemmItem:
    for kind in (GemmShape, DrawnShape):
        if len(values) == len(kind._fields):
            return kind(*values)
    if len(values) == len(GroupedShape._fields):
        grouped = GroupedShape(*values)
        return grouped._replace(row_groups=tuple(grouped.row_groups))
    g, m, k, n, mode, group_size, config = values
    plain = KernelConfig(*config)
    config = plain._replace(
        schedule=Schedule(plain.schedule), decomposition=Decomposition(plain.decomposition),
        raster_order=RasterOrder(plain.raster_order),
    )  # fmt: skip
    return KernelItem(g, m, k, n, WeightMode(mode), group_size, config)


_SEED = 20_240
_MAX_FAILURES_IN_A_ROW = 5
_MAX_KERNEL_FAILURES_IN_A_ROW = 40  # the kernels of one GEMM follow each other, and a bad one has many splits
_POINTS_PER_LINE, _SECONDS_PER_STATE = 50, 6.0
_HOST_SECONDS = 0.02  # of one point: capture, instantiate, and what the host does around them
_WRITE_START_SECONDS, _WRITE_SECONDS = 2.0, 5e-4  # of the data set: pandas, and a row with its part of the hash
_TRACE_START_SECONDS, _TRACE_SECONDS = 20.0, 0.005  # PyTorch and its profiler; one call


_WEIGHTS_ROTATE = (
    "num_weight_copies distinct copies in turn, from a pool of random data; A and C are one buffer each, so A may lie "
    "in L2 as the layer before leaves it"
)
_ALL_ROTATE = "num_weight_copies distinct copies of A and B in turn, and as many of C as L2 does not hold"
Item = TypeVar("Item", bound=GemmItem)


def shuffle_shapes(shapes: Sequence[Item]) -> list[Item]:
    """Return the distinct shapes in a random order that is always the same: a stopped run is a spread sample.

    The kernels of one GEMM stay together, as given, the GPU being in the same state for all of them.
    """
    by_gemm = sorted(dict.fromkeys(shapes), key=lambda shape: shape[:4])
    gemms = [list(group) for _, group in groupby(by_gemm, key=lambda shape: shape[:4])]
    random.Random(_SEED).shuffle(gemms)
    return [shape for gemm in gemms for shape in gemm]


def estimate_seconds(shapes: Sequence[GemmItem], protocol: TimingProtocol) -> float:
    """Return about how long a measurement takes, in seconds, on a GPU of the H200's class."""
    total = 0.0
    for shape in shapes:
        busy_s = max(protocol.target_busy_us, 3 * shape_sets.rough_latency_us(shape)) * 1e-6
        warm_up_s = protocol.warm_up_s if protocol.clock == "sustained" else busy_s
        rows = shape_sets.rows_of(shape)
        total += _HOST_SECONDS + warm_up_s + protocol.replays_of(rows) * (busy_s + protocol.idle_s_of(rows))
    return total


def file_stem(gpu: str, kernel: str, dtype: str, protocol: TimingProtocol) -> str:
    """Return the name of a data set without its suffix; what is unusual about the protocol is named."""
    unusual = {"warm": protocol.l2 == "warm", "sustained": protocol.clock == "sustained", "quick": protocol.is_quick}
    extra = "".join(f"-{word}" for word, is_so in unusual.items() if is_so)
    return f"{gpu}-{kernel}-{dtype}{extra}"


@dataclass
class Campaign:
    """A data set in the making.

    Attributes:
        out, stem: folder of the files, and their name without suffix.
        say: takes progress lines.
        stop_at: when to stop, on the clock of `time.monotonic`; None: at the end.
        with_trace: whether kernel names are wanted; a runner that builds its kernels knows them.
        plan: what is measured and how it was chosen, for the meta file.
    """

    runner: Runner
    protocol: TimingProtocol
    out: Path
    stem: str
    say: Callable[[str], None]
    stop_at: float | None = None
    pool_bytes: int = 4 << 30
    with_trace: bool = True
    plan: str = ""
    _meta: dict[str, Any] = field(default_factory=dict)
    _kind: type = GemmShape

    @property
    def path(self) -> Path:
        return self.out / f"{self.stem}.parquet"

    def run(self, shapes: Sequence[GemmItem]) -> Path:
        """Measure what is not in the work file yet, and write data set and meta file; returns the data set's path.

        Raises:
            GemmEvalError: results are wrong, too many failures in a row, or something needed is missing.
        """
        import_pandas()  # better missed before a measurement than after
        self.out.mkdir(parents=True, exist_ok=True)
        runner, ordered = self.runner, shuffle_shapes(shapes)
        settings = {
            "kernel": runner.kernel, "input_dtype": runner.input_dtype, "gpu": runner.gpu_name,
            "protocol": self.protocol.describe(), **runner.settings,
        }  # fmt: skip
        work = WorkFile(self.out / f"{self.stem}.jsonl", settings)
        if self.plan and self.plan not in work.plans:
            work.add("plan", self.plan)
        todo = [shape for shape in ordered if shape not in work.timings]
        self.say(f"{self.stem}: {len(todo)} to measure, {len(ordered) - len(todo)} there, about "
                 f"{estimate_seconds(todo, self.protocol):.0f} s")  # fmt: skip
        if ordered:
            runner.prepare(todo)
            runner.allocate(ordered, self.pool_bytes)
            errors, floor_us = dict(runner.check()), measure_floor_us(runner)
            self._kind = type(ordered[0])
            self._meta = self._describe(errors, floor_us) | dict(meta_for(self._kind))
            try:
                with progress_bar(len(todo), self.stem, None) as advance:
                    self._measure(work, todo, floor_us, advance)
            finally:  # what was measured is kept, whatever happened
                work.add("state", read_gpu_state())
                self._write(work)
            if self.with_trace:
                self._trace(work, set(ordered))  # buffers hold these and no others
                self._write(work)
        self.say(f"{self.path}: {len(work.timings)} rows, {len(work.errors)} failed")
        return self.path

    def _time_left(self) -> float:
        return math.inf if self.stop_at is None else self.stop_at - time.monotonic()

    def _measure(
        self, work: WorkFile, todo: Sequence[GemmItem], floor_us: float, advance: Callable[[int], None]
    ) -> None:
        begin = read_at = time.monotonic()
        failures, num_rows = 0, len(todo) + len(work.timings)
        reserve = _WRITE_START_SECONDS + _WRITE_SECONDS * num_rows
        if self.with_trace:
            reserve += _TRACE_START_SECONDS + _TRACE_SECONDS * num_rows
        is_of_kernels = self._kind is KernelItem
        most = _MAX_KERNEL_FAILURES_IN_A_ROW if is_of_kernels else _MAX_FAILURES_IN_A_ROW
        best_us: dict[tuple[Any, ...], float] = {}  # of each GEMM by any kernel of ours
        for item, timing in work.timings.items():
            best_us[item[:6]] = min(timing["latency_us"], best_us.get(item[:6], math.inf))
        work.add("state", read_gpu_state())
        for done, item in enumerate(todo, 1):
            if self._time_left() < reserve:
                self.say(f"stopped before the budget's end: {done - 1} of {len(todo)} measured")
                return
            try:
                known_us = best_us.get(item[:6]) if is_of_kernels else None
                measured = measure_shape(self.runner, item, self.protocol, floor_us=floor_us, best_us=known_us)
                if (built := self.runner.built(item)) is not None:
                    work.add("kernel", built._asdict(), item)
                work.add("timing", dict(vars(measured)), item)
                best_us[item[:6]] = min(measured.latency_us, known_us or math.inf)
                failures = 0
            except Exception as error:  # whatever a driver or a library says: the other GEMMs may work
                failures += 1
                work.add("error", f"{type(error).__name__}: {error}", item)
                self.say(f"{columns_of(item)} failed: {type(error).__name__}: {error}")
                if failures == most:
                    raise GemmEvalError(f"{failures} GEMMs failed in a row, the last with: {error}") from error
            advance(1)
            if time.monotonic() - read_at > _SECONDS_PER_STATE:
                work.add("state", read_gpu_state())
                read_at = time.monotonic()
            if done % _POINTS_PER_LINE == 0:
                self.say(f"{done} of {len(todo)}, {time.monotonic() - begin:.0f} s")

    def _trace(self, work: WorkFile, shapes: set[GemmItem]) -> None:
        wanted = [shape for shape in work.timings if shape not in work.kernels and shape in shapes]
        note = "every call seen"
        try:
            for shape, launch in trace_kernels(self.runner, wanted):
                work.add("kernel", launch._asdict(), shape)
                if self._time_left() < 2.0:
                    break
        except Exception as error:  # kernel names are an extra: the timings stand without them
            note = f"{type(error).__name__}: {error}"
        missing = sum(shape not in work.kernels for shape in work.timings)
        self._meta["kernel_trace"] = note if not missing else f"{missing} calls not seen; {note}"
        self.say(f"kernel trace: {self._meta['kernel_trace']}")

    def _describe(self, errors: dict[str, float], floor_us: float) -> dict[str, Any]:
        return {
            "what": "device time of one GEMM, C[G,M,N] = A[G,M,K] x B[G,K,N]; latency_us is the median over replays",
            "gpu": describe_gpu(self.runner),
            "kernel": self.runner.kernel,
            "dtypes": [self.runner.input_dtype, self.runner.weight_dtype, self.runner.output_dtype],
            "runner": self.runner.describe(),
            "protocol": self.protocol.describe(),
            "protocol_notes": {
                "timer": "CUDA events around the launch of a CUDA graph of calls_per_replay calls",
                "floor_us": floor_us,
                "floor": "events around a graph of one empty kernel; subtracted from each replay, not from each call",
                "weights": _ALL_ROTATE if self._kind is DrawnShape else _WEIGHTS_ROTATE,
                "flush": f"before each cold replay {self.protocol.cold_bytes_of(self.runner.l2_bytes) / 1e6:.0f} MB of "
                "other memory are read; not timed",
                "before": "one untimed call before each replay",
            },
            "pool_bytes": self.pool_bytes,
            "check_relative_errors": errors,
        }

    def _write(self, work: WorkFile) -> None:
        common = {name: getattr(self.runner, name) for name in ("input_dtype", "weight_dtype", "output_dtype")}
        common |= {"l2": self.protocol.l2, "clock": self.protocol.clock}
        common["accumulate"] = getattr(self.runner, "accumulate", None)
        rows = [
            {**columns_of(item), **common, **timing, **work.kernels.get(item, {})}
            for item, timing in work.timings.items()
        ]
        if self._kind is KernelItem:
            add_ranks(rows)
        if self._kind is GroupedShape:
            rows = [row | cutlass_tile(str(row.get("kernel", ""))) for row in rows]
        failed = [{**columns_of(item), "error": error} for item, error in work.errors.items()]
        plans = {"plans": work.plans} if work.plans else {}
        meta = {**self._meta, **plans, "failed": failed, "gpu_states": work.states}
        write_timings(self.path, rows, meta, self._kind)


RUNNERS: Mapping[str, Callable[[str], Runner]] = {
    runner.kernel: runner
    for runner in (CublasRunner, TorchRunner, CublasLtRunner, GroupedRunner, W4A16Runner, W4A8Runner)
}
"""Kernel names that `make_runner` knows, with the classes that run them."""


def make_runner(kernel: str, dtype: str) -> Runner:
    """Return a runner on device 0.

    Raises:
        InvalidOptionError: no such kernel.
        UnsupportedError: the kernel has no such data type.
        GemmEvalError: there is no GPU, or a package is missing.
    """
    check_word("--kernel", kernel, RUNNERS)
    return RUNNERS[kernel](dtype)
