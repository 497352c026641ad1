"""`ResultOrigin`: what a result keeps of the evaluator that made it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate.backend import Backend, make_backend

if TYPE_CHECKING:
    from gemm_eval.arch import ArchSpec
    from gemm_eval.evaluate.evaluator import GEMMEvaluator


class ResultOrigin:
    """A cost model with its search, and the options to make an evaluator with: what it takes to explain a result.

    What an evaluator remembers is no part of it: who keeps one result does not keep all others of its evaluator.

    Args:
        arch: the architecture.
        settings: the other arguments of `GEMMEvaluator`, by name; not to be changed.
    """

    __slots__ = ("_changed", "_settings", "backend")

    def __init__(self, arch: ArchSpec, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._changed: dict[str, GEMMEvaluator | None] = {}
        self.backend: Backend = make_backend(
            arch, settings["plan"], allow_idle_cores=settings["allow_idle_cores"], policy=settings["policy"]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return ResultOrigin, (self.arch, self._settings)

    @property
    def arch(self) -> ArchSpec:
        """The architecture."""
        return self.backend.arch

    def on(self, arch: ArchSpec | str | os.PathLike[str]) -> GEMMEvaluator:
        """Return an evaluator with the same options for an arch, which remembers nothing yet."""
        from gemm_eval.evaluate.evaluator import GEMMEvaluator

        return GEMMEvaluator(arch, **self._settings)

    def changed(self, name: str, changes: Mapping[str, Any]) -> GEMMEvaluator | None:
        """Return an evaluator for this arch with another spec, kept by name; None: there is no such spec."""
        from gemm_eval.evaluate.evaluator import GEMMEvaluator

        if name not in self._changed:
            try:  # on disk would be files of archs that nobody has asked for
                settings = {**self._settings, "disk_cache": False}
                self._changed[name] = GEMMEvaluator(self.arch.with_(**changes), **settings)
            except GemmEvalError:
                self._changed[name] = None
        return self._changed[name]
