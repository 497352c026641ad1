"""What an optimizer's step moves: each parameter's value, gradient and states, once. It is one fused kernel a type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gemm_eval.errors import InvalidOptionError
from gemm_eval.torch.work import DEALT, dealt
from gemm_eval.transformer import MemoryWork
from gemm_eval.words import shown

__all__ = ["OPTIMIZERS", "optimizer_works"]

OPTIMIZERS = {"adamw": 2, "adam": 2, "sgd": 0, "sgd_momentum": 1, "lion": 1, "adagrad": 1, "rmsprop": 1}
"""Optimizers, and how many states of its own size a parameter has."""


def optimizer_works(optimizer: Any, parameters: Iterable[Any]) -> list[MemoryWork]:
    """Return the kernels of a step, as torch's ``fused=True`` has them: states have the types of their parameters.

    Args:
        optimizer: a name of `OPTIMIZERS`, or an optimizer of torch, of which its class and momentum are read.
        parameters: that have gradients.

    Raises:
        InvalidOptionError: another optimizer.
    """
    num_states = OPTIMIZERS.get(_name(optimizer))
    if num_states is None:
        raise InvalidOptionError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {shown(optimizer)}")
    sizes: dict[str, int] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            key = str(parameter.dtype)
            sizes[key] = sizes.get(key, 0) + parameter.numel() * parameter.element_size()
    return [
        dealt(DEALT, (2 + num_states) * num_bytes, (1 + num_states) * num_bytes, num_bytes)
        for num_bytes in sizes.values()
    ]


def _name(optimizer: Any) -> str:
    if isinstance(optimizer, str):
        return optimizer.lower()
    name = type(optimizer).__name__.lower()
    has_momentum = any(group.get("momentum") for group in getattr(optimizer, "param_groups", ()))
    return "sgd_momentum" if name == "sgd" and has_momentum else name
