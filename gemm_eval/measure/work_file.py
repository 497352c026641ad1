"""The work file of a measurement: one JSON object a line, appended as it comes, so that nothing measured is lost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from gemm_eval.device import Timing
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels import WeightMode
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.measure.runners import BuiltKernel
from gemm_eval.measure.shapes import Candidate, GemmItem, GemmShape, GroupedShape, KernelItem
from gemm_eval.measure.trace import KernelLaunch
from gemm_eval.storage import write_whole

__all__ = ["WorkFile"]

_SYNC_EVERY_S = 1.0


class WorkFile:
    """Timings, kernels, errors and readings of one data set in the making.

    Attributes:
        timings, kernels, errors: by shape, as read and as added; an error goes when its shape is timed after all.
        states: readings of the GPU.
        plans: how what is timed was chosen, once for each way.

    Raises:
        GemmEvalError: the file was begun with other settings, or a line in its middle is damaged.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.timings: dict[GemmItem, dict[str, Any]] = {}
        self.kernels: dict[GemmItem, dict[str, Any]] = {}
        self.errors: dict[GemmItem, str] = {}
        self.states: list[dict[str, Any]] = []
        self.plans: list[str] = []
        self._settings: dict[str, Any] | None = None
        self._synced_s = 0.0
        if path.exists():
            self._read()
        if self._settings is None:
            self._append({"kind": "settings", "settings": settings})
        elif self._settings != json.loads(json.dumps(settings)):
            raise GemmEvalError(
                f"{path} was begun with other settings: {self._settings}; now: {settings}; move it away"
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
        if kind == "settings":
            self._settings = entry["settings"]
        elif kind == "state":
            self.states.append(entry["state"])
        elif kind == "plan":
            self.plans.append(entry["plan"])
        else:
            shape = _item(entry["shape"])
            if kind == "timing":
                self.timings[shape] = entry["timing"]
                self.errors.pop(shape, None)
            elif kind == "kernel":
                self.kernels[shape] = entry["launch"]
            elif kind == "error":
                self.errors[shape] = entry["error"]
            else:
                raise ValueError(f"no kind {kind!r}")

    def _append(self, entry: dict[str, Any]) -> None:
        self._take(entry)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            if time.monotonic() - self._synced_s > _SYNC_EVERY_S:  # only a machine that dies loses what is not synced
                os.fsync(file.fileno())
                self._synced_s = time.monotonic()

    def add_timing(self, shape: GemmItem, timing: Timing) -> None:
        """Keep a timing."""
        self._append({"kind": "timing", "shape": list(shape), "timing": dict(vars(timing))})

    def add_kernel(self, shape: GemmItem, launch: KernelLaunch | BuiltKernel) -> None:
        """Keep which kernel ran."""
        self._append({"kind": "kernel", "shape": list(shape), "launch": launch._asdict()})

    def add_error(self, shape: GemmItem, error: str) -> None:
        """Keep that a GEMM could not be measured, and why."""
        self._append({"kind": "error", "shape": list(shape), "error": error})

    def add_state(self, state: dict[str, Any]) -> None:
        """Keep a reading of the GPU."""
        self._append({"kind": "state", "state": state})

    def add_plan(self, plan: str) -> None:
        """Keep how what comes was chosen."""
        if plan and plan not in self.plans:
            self._append({"kind": "plan", "plan": plan})


def _item(values: list[Any]) -> GemmItem:
    if len(values) == len(GemmShape._fields):
        return GemmShape(*values)
    if len(values) == len(Candidate._fields):
        return Candidate(*values)
    if len(values) == len(GroupedShape._fields):
        plain = GroupedShape(*values)
        return plain._replace(row_groups=tuple(plain.row_groups))
    g, m, k, n, mode, group_size, config = values
    return KernelItem(g, m, k, n, WeightMode(mode), group_size, _config(config))


def _config(values: list[Any]) -> KernelConfig:
    plain = KernelConfig(*values)
    return plain._replace(
        schedule=Schedule(plain.schedule),
        decomposition=Decomposition(plain.decomposition),
        raster_order=RasterOrder(plain.raster_order),
    )
