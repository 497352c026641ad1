"""Predictions as a timeline in the trace event format of Chrome and Perfetto."""

from __future__ import annotations

import json
from typing import Any

from gemm_eval.torch.prediction import ModulePrediction, PredictedOperation

__all__ = ["chrome_trace"]

_KERNELS, _MODULES = 0, 1  # threads of the trace


def chrome_trace(prediction: ModulePrediction) -> str:
    """Return JSON of complete events: a thread of kernels, and one of the modules that run them.

    Times are in microseconds, as the format has them.
    """
    operations = prediction.operations
    names = [(_KERNELS, "kernels"), (_MODULES, "modules")]
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": f"predicted on {prediction.arch_name}"}},
        *({"name": "thread_name", "ph": "M", "pid": 0, "tid": at, "args": {"name": name}} for at, name in names),
    ]
    for one in operations:
        args = {"module": one.path, "bound": one.bound, "source": one.source, "detail": one.detail, "flop": one.flop,
                "bytes": one.num_bytes, "low_us": one.low_us, "high_us": one.high_us}  # fmt: skip
        events.append(_event(one.name, one.kind, one.start_us, one.latency_us, _KERNELS, args))
    events += _spans(operations)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


def _event(name: str, category: str, start_us: float, us: float, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "cat": category, "ph": "X", "ts": start_us, "dur": us, "pid": 0, "tid": thread, "args": args}


def _spans(operations: tuple[PredictedOperation, ...]) -> list[dict[str, Any]]:
    """Stretches of time in which a module, or one in it, runs; spans of inner ones lie within."""
    events, open_spans = [], dict[str, float]()
    end_us = 0.0
    for one in operations:
        parts = one.path.split(".") if one.path else []
        inside = {".".join(parts[: end + 1]) for end in range(len(parts))}
        ended = [path for path in open_spans if path not in inside]
        events += [_span(path, open_spans.pop(path), end_us) for path in ended]
        for path in sorted(inside, key=len):
            open_spans.setdefault(path, one.start_us)
        end_us = one.start_us + one.latency_us
    return events + [_span(path, start_us, end_us) for path, start_us in open_spans.items()]


def _span(path: str, start_us: float, end_us: float) -> dict[str, Any]:
    return _event(path, "module", start_us, end_us - start_us, _MODULES, {})
