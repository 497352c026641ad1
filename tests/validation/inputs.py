"""Made-up timings, and runs of commands, that tests of validation share."""

from dataclasses import replace
from typing import Any

import pandas as pd
from rich.console import Console

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.validation.tables import Floats, Timings
from tests.cli.commands import Ran

H200 = load_arch("h200-sxm", GpuSpec)


def make_timings(rows: Any, pairs: Any, latency_us: Any = 1.0, **changes: Any) -> Timings:
    """Dense fp16 GEMMs on an H200, each M of `rows` for each (N, K) of `pairs`; changes: columns, or fields."""
    frame = pd.DataFrame([(1, m, k, n) for n, k in pairs for m in rows], columns=["G", "M", "K", "N"]).assign(
        input_dtype="fp16", weight_dtype="fp16", output_dtype="fp16", group_size=-1, latency_us=latency_us
    )
    columns = {key: changes.pop(key) for key in list(changes) if key in frame}
    return Timings(frame.assign(**columns), **({"name": "t", "gpu": "h200-sxm", "library": "cublas"} | changes))


def with_latency(timings: Timings, latency_us: Floats) -> Timings:
    return replace(timings, frame=timings.frame.assign(latency_us=latency_us))


def shown(renderable: Any) -> str:
    console = Console(width=240, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def run(*words: object, code: int = 0, columns: int = 240) -> str:
    """What a command prints; of JSON its output alone, as progress that takes long is told beside it."""
    ran = Ran(*map(str, words), columns=columns)
    assert ran.code == code, ran.err
    return ran.out if "--json" in words else ran.out + ran.err
