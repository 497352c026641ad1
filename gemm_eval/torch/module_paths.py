"""Which module runs: hooks that keep the path of a recorder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gemm_eval.extras import needs_extra
from gemm_eval.torch.recorder import Recorder

with needs_extra("gemm_eval.torch", "torch"):
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["follow_modules"]


@contextmanager
def follow_modules(recorder: Recorder, root: torch.nn.Module | None = None) -> Iterator[None]:
    """Keep `recorder.path` that of the module that runs.

    Args:
        recorder: whose.
        root: paths are those below it; None: each outermost module that runs is a root, named by its class.
    """
    paths: dict[int, str] = {}
    stack: list[str] = []

    def learn(module: torch.nn.Module, name: str) -> None:
        for path, inner in module.named_modules():
            full = ".".join(filter(None, (name, path)))
            paths.setdefault(id(inner), full)
            recorder.trace.modules.setdefault(full, type(inner).__name__)

    def enter(module: torch.nn.Module, _: Any) -> None:
        if root is None and id(module) not in paths:
            learn(module, ".".join(filter(None, (recorder.path, type(module).__name__))))
        stack.append(recorder.path)
        recorder.path = paths.get(id(module), recorder.path)

    def leave(*_: Any) -> None:
        if stack:  # a module that ran before the first hook leaves without having entered
            recorder.path = stack.pop()

    if root is not None:
        learn(root, "")
    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        recorder.path = ""
