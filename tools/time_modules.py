"""Times drawn modules on a GPU: in a CUDA graph, and operator by operator; eager code, or what torch.compile makes.

    python -m tools.time_modules eager --out FOLDER --limit-s 290                # 200 draws
    python -m tools.time_modules compiled --out FOLDER --limit-s 290             # 60 draws
    python -m tools.time_modules eager-backward --out FOLDER --limit-s 290       # forward and backward

Each draw is measured as `gemm_eval.torch.compare` measures a module: three warm-up runs, three runs under torch's
profiler, and the median of ten replays of a CUDA graph with pauses of 30 ms. Columns of FOLDER/MODE.csv:

    graph_us    replays one after the other: what fits L2 stays there
    cold_us     the same, with 256 MB of other memory read before each of six replays; 0: whole modules of a report
    kernels_us  medians of all kernels under the profiler, added up
    error       why there is no time; the next draw is measured all the same

FOLDER/MODE-operators.csv.gz has a row for each operator that launched kernels, in their order: its name, arguments and
results (`bf16[8,64]{1,8}+4`: type, shape, strides unless contiguous, offset unless 0), and kernels as JSON (name,
microseconds, grid, block). Compiled code has one row, with all kernels. FOLDER/code.csv.gz has the code that Inductor
made.

Processes side by side draw and compile; one at a time has the GPU, from the first run of its code to the last replay.
One that dies leaves an error in the row of its draw, and another takes the next.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import gc
import gzip
import io
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tools.draw_modules import REAL_SEED, SEEDS, Draw, drawn, order, order_of_real

_WARM_UPS, _PROFILED, _COLD_REPLAYS = 3, 3, 6
_FLUSH_BYTES = 256_000_000
_WHOLES = REAL_SEED, SEEDS["ninth report"]
"""Seeds of draws that have no times of operators: of the last report the whole counts."""

_HANGS_S = 100.0
"""A draw that takes longer has no time."""

_LOST = 3
"""Exit code of a process that can use the GPU no more, and has written why."""

_MODES = "eager", "compiled", "eager-backward", "compiled-backward"
_EAGER_WORKERS, _GRACE_S = 6, 12.0
"""Workers that take eager modules first, while others compile; seconds to end after the time limit."""

_TYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip
OUTSIDE = "outside"
"""In the place of an operator: all kernels of a run of which some ran outside of all operators."""

Kernel = tuple[str, float, str, str]
"""Name, microseconds, grid and block."""


def written(value: Any) -> str:
    """Return an argument or result of an operator in words."""
    if isinstance(value, torch.Tensor):
        text = f"{_TYPES.get(value.dtype, str(value.dtype))}[{','.join(map(str, value.shape))}]"
        if not value.is_contiguous():
            text += "{" + ",".join(map(str, value.stride())) + "}"
        return text + (f"+{value.storage_offset()}" if value.storage_offset() else "")
    if isinstance(value, list | tuple):
        return f"({', '.join(map(written, value))})"
    return str(value).removeprefix("torch.")


class Marks(TorchDispatchMode):
    """Marks each operator that runs in the profile, and notes its arguments and results."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark
        self.calls: list[tuple[str, str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        number, kwargs = len(self.calls), kwargs or {}
        name = str(func)
        self.calls.append((name, "", ""))
        before = ", ".join([*map(written, args), *(f"{key}={written(value)}" for key, value in kwargs.items())])
        with torch.profiler.record_function(f"{self.mark}{number}"):
            out = func(*args, **kwargs)
        self.calls[number] = name, before, written(out)
        return out


class _Named:
    """An event of the profiler whose name has its grid and block."""

    def __init__(self, event: Any, grids: Mapping[int, tuple[str, str]]) -> None:
        self._event, self._grids = event, grids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)

    def name(self) -> str:
        name: str = self._event.name()
        if self._event.device_type() == torch.autograd.DeviceType.CPU or self._event.is_user_annotation():
            return name
        return "\t".join((name, *self._grids.get(self._event.correlation_id(), ("", ""))))


def _grids(profiler: Any) -> dict[int, tuple[str, str]]:
    """Return grid and block of kernels by the number of their launch; empty: the trace does not say."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        try:
            profiler.export_chrome_trace(file.name)
            events = json.loads(Path(file.name).read_bytes())["traceEvents"]
        except Exception as error:  # it is extra: times are there without it
            print(f"no grids: {error}", file=sys.stderr)
            return {}
    result = {}
    for event in events:
        facts = event.get("args", {})
        if event.get("cat") == "kernel" and "grid" in facts:
            result[int(facts["correlation"])] = tuple("x".join(map(str, facts[key])) for key in ("grid", "block"))
    return result  # type: ignore[return-value]


def _kernel(name: str, us: float) -> Kernel:
    name, grid, block, *_ = [*name.split("\t"), "", ""]
    return name, us, grid, block


def _median_kernels(runs: Sequence[Sequence[Kernel]]) -> list[Kernel]:
    """Return kernels with the median of the time of each; those of the last run where runs differ."""
    names = {tuple(kernel[0] for kernel in kernels) for kernels in runs}
    if len(names) > 1:
        return list(runs[-1])
    return [
        (at[0][0], round(statistics.median(kernel[1] for kernel in at), 3), *at[0][2:])
        for at in zip(*runs, strict=True)
    ]


def profiled(run: Callable[[], Any], *, marks: bool) -> tuple[Any, Marks]:
    """Run under the profiler; return it, and the operators that ran where there are marks."""
    from torch.profiler import ProfilerActivity, profile

    from gemm_eval.torch.measure_module import MARK

    mode = Marks(MARK)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(_PROFILED):
            if marks:
                with mode:
                    run()
            else:
                run()
        torch.cuda.synchronize()
    return profiler, mode


def operators_of(profiler: Any, mode: Marks) -> list[tuple[str, str, str, list[Kernel]]]:
    """Return operators that launched kernels, in their order, with these; without marks all kernels as one.

    Kernels outside of all marks are a last row.
    """
    from gemm_eval.torch.measure_module import attribute

    grids = _grids(profiler)
    events = [_Named(event, grids) for event in profiler.profiler.kineto_results.events()]
    kernels = sorted(
        (event for event in events if event.device_type() != torch.autograd.DeviceType.CPU
         and not event.is_user_annotation()), key=lambda event: event.start_ns(),
    )  # fmt: skip
    every = [_kernel(event.name(), event.duration_ns() / 1000) for event in kernels]
    each = len(every) // _PROFILED
    medians = _median_kernels([every[each * n : each * (n + 1)] for n in range(_PROFILED)])
    if not mode.calls:
        return [("compiled", "", "", medians)]
    by_mark, outside_us = attribute(events)
    each = len(mode.calls) // _PROFILED
    if [call[0] for call in mode.calls] != [call[0] for call in mode.calls[:each]] * _PROFILED:
        raise RuntimeError("runs differ in what they do")
    rows = []
    for number, call in enumerate(mode.calls[:each]):
        runs = [[_kernel(*kernel) for kernel in by_mark.get(n * each + number, [])] for n in range(_PROFILED)]
        if any(runs):
            rows.append((*call, _median_kernels(runs)))
    if outside_us:
        rows.append((OUTSIDE, f"{outside_us / _PROFILED:.3f} us of all", "", medians))
    return rows


def _run_of(draw: Draw, module: Any, backward: bool) -> Callable[[], Any]:
    """Return what runs a module forward, or the gradients of its parameters too."""
    inputs = draw.tensors("cuda")

    def forward() -> Any:
        with torch.no_grad():
            return module(**inputs)

    if not backward:
        return forward
    parameters = [parameter for parameter in draw.module.parameters() if parameter.requires_grad]
    out = module(**inputs)
    seed = torch.randn_like(out) if out.dim() else None
    del out

    def both() -> Any:
        return torch.autograd.grad(module(**inputs), parameters, seed, allow_unused=True)

    return both


def measured(draw: Draw, module: Any, gpu: Gpu, *, backward: bool, marks: bool) -> tuple[dict[str, Any], list[Any]]:
    """Return columns of a draw that is measured, and its operators; the GPU is free after its last run."""
    from gemm_eval.torch.measure_module import capture_graph, replay_us

    torch.cuda.reset_peak_memory_stats()
    run = _run_of(draw, module, backward)
    out = None
    for _ in range(_WARM_UPS):
        out = run()
    tensors = out if isinstance(out, tuple) else (out,)
    is_finite = all(bool(x.isfinite().all()) for x in tensors if x is not None)
    del out, tensors
    peak_bytes = torch.cuda.max_memory_allocated()
    is_whole = draw.seed in _WHOLES
    profile = None if is_whole else profiled(run, marks=marks)
    graph = capture_graph(run)
    other = torch.zeros(_FLUSH_BYTES // 4, device="cuda")
    cold_us = 0.0 if is_whole else replay_us(graph, lambda: other.sum(), _COLD_REPLAYS)
    times = {"graph_us": replay_us(graph), "cold_us": cold_us}
    gpu.free()
    operators = [] if profile is None else operators_of(*profile)
    kernels = [kernel for row in operators if row[0] != OUTSIDE for kernel in row[-1]]
    times["kernels_us"] = sum(kernel[1] for kernel in kernels)
    columns = {name: round(us, 3) for name, us in times.items()}
    return columns | {"num_kernels": len(kernels), "peak_bytes": peak_bytes, "is_finite": is_finite}, operators


_COLUMNS = (
    "split", "seed", "number", "attempt", "family", "dtype", "autocast", "is_training", "is_channels_last", "tf32",
    "num_parameters", "graph_us", "cold_us", "kernels_us", "num_kernels", "peak_bytes", "is_finite", "compile_s",
    "wall_s", "error", "text",
)  # fmt: skip
_OPERATOR_COLUMNS = ("seed", "number", "index", "operator", "arguments", "results", "us", "kernels")


def _append(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a table, which may be compressed: a member of its own for each call."""
    text = io.StringIO()
    writer = csv.DictWriter(text, tuple(columns), restval="")
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # tables have one writer
        if not path.stat().st_size:
            writer.writeheader()
        writer.writerows(rows)
        data = text.getvalue().encode()
        file.write(gzip.compress(data) if path.suffix == ".gz" else data)


def _case(split: str, seed: int, number: int, attempt: int) -> dict[str, Any]:
    return {"split": split, "seed": seed, "number": number, "attempt": attempt}


def _words(error: BaseException) -> str:
    cause = error.__context__  # the end of a capture that failed says less than this
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return text if cause is None else f"{text} (after {type(cause).__name__}: {' '.join(str(cause).split())[:200]})"


def _is_lost(error: BaseException) -> bool:
    """Say whether the process can use the GPU no more."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return "illegal memory access" in str(error) or "device-side assert" in str(error)


def _compiled(draw: Draw) -> Any:
    """Return a draw as torch.compile makes it when it first runs; choices of Triton's configs are not kept in files."""
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.reset()
    torch._inductor.config.autotune_local_cache = False
    return torch.compile(draw.module, dynamic=False)


class Gpu:
    """The right to run on the GPU, which one worker has at a time; it ends with its process."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "gpu").open("a")
        self._holder = folder / "holder"
        self.is_held = False

    def take(self) -> None:
        """Wait for the GPU, and note who has it since now."""
        if not self.is_held:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.is_held = True
            self._holder.write_text(str(os.getpid()))

    def free(self) -> None:
        """Let another worker have the GPU."""
        if self.is_held:
            self._holder.unlink(missing_ok=True)
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self.is_held = False


def _take_when_compiled_code_runs(gpu: Gpu) -> None:
    """Have compiled code wait for the GPU before it runs, and times of padded GEMMs: else compiling needs none."""
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.output_code import CompiledFxGraph

    call, do_bench = CompiledFxGraph.__call__, pad_mm.get_do_bench

    def waiting(self: Any, inputs: Any) -> Any:
        gpu.take()
        return call(self, inputs)

    def alone(*args: Any, **kwargs: Any) -> Any:
        gpu.take()
        return do_bench()(*args, **kwargs)

    def then_free(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            was_held = gpu.is_held
            try:
                return function(*args, **kwargs)
            finally:
                if not was_held:
                    gpu.free()

        return run

    CompiledFxGraph.__call__ = waiting
    pad_mm.get_do_bench = lambda: alone
    for name in ("_should_pad", "_should_pad_bench"):  # of torch 2.13 and 2.11
        if hasattr(pad_mm, name):
            setattr(pad_mm, name, then_free(getattr(pad_mm, name)))


def work(options: argparse.Namespace) -> None:
    """Measure draws that no other worker has taken yet; write each as it comes."""
    gpu = Gpu(options.scratch)
    _take_when_compiled_code_runs(gpu)
    cases = json.loads((options.scratch / "cases.json").read_text())
    first = [
        index for index, case in enumerate(cases) if case[0].startswith("eager") == (options.slot < _EAGER_WORKERS)
    ]
    for index in [*first, *sorted({*range(len(cases))} - {*first})]:
        if time.time() > options.until:
            return
        try:
            (options.scratch / f"{index}.taken").touch(exist_ok=False)
        except FileExistsError:
            continue
        (options.scratch / f"slot{options.slot}").write_text(str(index))
        _time_draw(options, gpu, cases[index])
        (options.scratch / f"slot{options.slot}").unlink()


def _time_draw(options: argparse.Namespace, gpu: Gpu, case: Sequence[Any]) -> None:
    """Measure a draw and append its rows."""
    from torch._inductor.utils import run_and_get_code

    mode, split, seed, number, attempt = case
    begin, row, is_lost, codes = time.perf_counter(), _case(*case[1:]), False, []
    operators: list[Any] = []
    is_eager, backward = mode.startswith("eager"), mode.endswith("backward")
    try:
        torch.manual_seed(0)
        draw = drawn(seed, number, "cuda", attempt)
        row |= draw.facts()
        module = draw.module
        with draw.settings():
            if not is_eager:
                module, inputs = _compiled(draw), draw.tensors("cuda")
                with torch.set_grad_enabled(backward):
                    _, codes = run_and_get_code(lambda: module(**inputs))
                row["compile_s"] = round(time.perf_counter() - begin, 2)
                del inputs
            gpu.take()
            columns, operators = measured(draw, module, gpu, backward=backward, marks=is_eager)
        row |= columns
    except Exception as error:  # of one draw; the others are worth having
        row["error"] = _words(error)
        is_lost = _is_lost(error)
    row["wall_s"] = round(time.perf_counter() - begin, 2)
    gpu.free()
    draw = module = None  # type: ignore[assignment]
    gc.collect()
    torch.cuda.empty_cache()
    _append(options.out / f"{mode}.csv", _COLUMNS, [row])
    rows = [
        {
            "seed": seed, "number": number, "index": place, "operator": operator, "arguments": arguments,
            "results": results, "us": round(sum(kernel[1] for kernel in kernels), 3), "kernels": json.dumps(kernels),
        }
        for place, (operator, arguments, results, kernels) in enumerate(operators)
    ]  # fmt: skip
    if rows:
        _append(options.out / f"{mode}-operators.csv.gz", _OPERATOR_COLUMNS, rows)
    if codes and seed not in _WHOLES:
        _append(options.out / "code.csv.gz", ("seed", "number", "code"),
                [{"seed": seed, "number": number, "code": "\n\n".join(codes)}])  # fmt: skip
    print(mode, split, number, row.get("family"), "" if seed in _WHOLES else row.get("graph_us"), row.get("error", ""),
          f"{row['wall_s']} s", flush=True)  # fmt: skip
    if is_lost:
        os._exit(_LOST)  # the GPU answers this process no more


def _attempt_of(case: tuple[str, int, int]) -> int:
    if case[1] == REAL_SEED:
        return 0
    try:
        return drawn(case[1], case[2]).attempt
    except Exception as error:
        print(f"{case}: {_words(error)}", flush=True)
        return 0


def _worker(options: argparse.Namespace, slot: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-W", "ignore", "-m", "tools.time_modules", options.mode, "--out", str(options.out),
        "--slot", str(slot), "--until", str(options.until), "--scratch", str(options.scratch),
    ]  # fmt: skip
    return subprocess.Popen(command, start_new_session=True)


def _run_workers(options: argparse.Namespace, cases: Sequence[Sequence[Any]]) -> None:
    """Have workers measure all draws; one that hangs on the GPU is stopped, and others follow those that died."""
    workers = [_worker(options, slot) for slot in range(min(options.workers, len(cases)))]
    holder = options.scratch / "holder"
    while any(worker.poll() is None for worker in workers) and time.time() < options.until + _GRACE_S:
        time.sleep(0.3)
        try:
            has_hung, pid = time.time() - holder.stat().st_mtime > _HANGS_S, int(holder.read_text() or 0)
        except (OSError, ValueError):
            has_hung, pid = False, 0
        for slot, worker in enumerate(workers):
            if has_hung and worker.pid == pid:
                _stop(worker)
                holder.unlink(missing_ok=True)
            if worker.poll() in (None, 0):
                continue
            at = options.scratch / f"slot{slot}"
            if at.exists():
                mode, *case = cases[int(at.read_text())]
                at.unlink()
                if worker.returncode != _LOST:  # it wrote no row of this draw
                    row = _case(*case) | {"error": f"process ended with {worker.returncode}"}
                    _append(options.out / f"{mode}.csv", _COLUMNS, [row])
                    print(mode, row, flush=True)
            workers[slot] = _worker(options, slot)
    for worker in workers:
        _stop(worker)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    """Measure all draws within the time limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=(*_MODES, "cases"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--limit-s", type=float, default=290.0, help="stop after so long")
    parser.add_argument("--count", type=int, default=None, help="how many draws; default: 200, or 60 compiled")
    parser.add_argument("--split", choices=tuple(SEEDS), default="", help="of this alone; default: the first three")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many at first")
    parser.add_argument("--cases", type=Path, help="JSON of lists: mode, split, seed, number, attempt")
    parser.add_argument("--real", action="store_true", help="models of torchvision, timm and transformers instead")
    parser.add_argument("--workers", type=int, default=15, help="processes that draw, compile and wait for the GPU")
    parser.add_argument("--slot", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.slot is not None:
        work(options)
        return
    begin = time.time()
    options.until = begin + options.limit_s
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        options.scratch = Path(scratch)
        if options.cases:
            cases = json.loads(options.cases.read_text())
        else:
            num = options.skip + (options.count or (60 if options.mode == "compiled" else 200))
            places = (order_of_real(num) if options.real else order(num, options.split))[options.skip :]
            with multiprocessing.get_context("fork").Pool(options.workers) as pool:  # CUDA is not in use yet
                attempts = pool.map(_attempt_of, places, chunksize=1)
            cases = [(options.mode, *place, attempt) for place, attempt in zip(places, attempts, strict=True)]
        (options.scratch / "cases.json").write_text(json.dumps(cases))
        print(f"{len(cases)} modules after {time.time() - begin:.0f} s", flush=True)
        os.environ |= {
            "TORCHINDUCTOR_CACHE_DIR": str(options.scratch / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }  # fmt: skip
        _run_workers(options, cases)
    print(f"{time.time() - begin:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
