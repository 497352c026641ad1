"""The work file of a measurement: one JSON object a line, appended as it comes, so that nothing measured is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gemm_eval.errors import GemmEvalError
from gemm_eval.measure._kernel_trace import KernelLaunch
from gemm_eval.measure._protocol import Timing
from gemm_eval.measure._shapes import Candidate, GemmItem, GemmShape

__all__ = ["WorkFile"]


class WorkFile:
    """Timings, kernels, errors and readings of one data set in the making.

    Attributes:
        timings, kernels, errors: by shape, as read and as added; an error goes when its shape is timed after all.
        states: readings of the GPU.

    Raises:
        GemmEvalError: the file was begun with other settings, or a line in its middle is damaged.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.timings: dict[GemmItem, dict[str, Any]] = {}
        self.kernels: dict[GemmItem, dict[str, Any]] = {}
        self.errors: dict[GemmItem, str] = {}
        self.states: list[dict[str, Any]] = []
        self._settings: dict[str, Any] | None = None
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
                self.path.write_text("".join(f"{line}\n" for line in lines[:-1]), encoding="utf-8")
                return
        if text and not text.endswith("\n"):
            self.path.write_text(text + "\n", encoding="utf-8")

    def _take(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if kind == "settings":
            self._settings = entry["settings"]
        elif kind == "state":
            self.states.append(entry["state"])
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
            os.fsync(file.fileno())

    def add_timing(self, shape: GemmItem, timing: Timing) -> None:
        """Keep a timing."""
        self._append({"kind": "timing", "shape": list(shape), "timing": dict(vars(timing))})

    def add_kernel(self, shape: GemmItem, launch: KernelLaunch) -> None:
        """Keep which kernel ran."""
        self._append({"kind": "kernel", "shape": list(shape), "launch": launch._asdict()})

    def add_error(self, shape: GemmItem, error: str) -> None:
        """Keep that a GEMM could not be measured, and why."""
        self._append({"kind": "error", "shape": list(shape), "error": error})

    def add_state(self, state: dict[str, Any]) -> None:
        """Keep a reading of the GPU."""
        self._append({"kind": "state", "state": state})


def _item(values: list[int]) -> GemmItem:
    return GemmShape(*values) if len(values) == len(GemmShape._fields) else Candidate(*values)
