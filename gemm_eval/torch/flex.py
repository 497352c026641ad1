"""flex_attention on tensors without memory, which it refuses: whoever holds the function calls a stand-in meanwhile.

Modules hold it by names of their own, so that it is not replaced where it lies: its code is, and put back.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["flex_attention_caught"]

_HOME = "torch.nn.attention.flex_attention"
_NAME = "_gemm_eval_stand_in"  # in the module of the function, whose names its code sees


def _calls_stand_in(*args: Any, **kwargs: Any) -> Any:
    return _gemm_eval_stand_in(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


@contextmanager
def flex_attention_caught(handler: Callable[..., Any]) -> Iterator[None]:
    """Call `handler` in the place of flex_attention, in this thread.

    Args:
        handler: has its arguments.
    """
    home = sys.modules.get(_HOME)
    if home is None:  # then nobody calls it either
        yield
        return
    function, thread = home.flex_attention, threading.get_ident()
    code, defaults, kwdefaults = function.__code__, function.__defaults__, function.__kwdefaults__
    original = type(function)(code, function.__globals__, function.__name__, defaults)
    original.__kwdefaults__ = kwdefaults

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (handler if threading.get_ident() == thread else original)(*args, **kwargs)

    setattr(home, _NAME, chosen)
    function.__code__, function.__defaults__, function.__kwdefaults__ = _calls_stand_in.__code__, None, None
    try:
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, kwdefaults
        delattr(home, _NAME)
