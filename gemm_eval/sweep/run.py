"""`sweep`: every point of a design space against workloads, in chunks, anywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gemm_eval.errors import InvalidOptionError
from gemm_eval.evaluate._progress import progress_bar
from gemm_eval.sweep.adaptive import Proposer
from gemm_eval.sweep.chunk import Task, evaluate_rows
from gemm_eval.sweep.columns import import_pyarrow, make_schema
from gemm_eval.sweep.describe import describe
from gemm_eval.sweep.executors import Workers, open_workers
from gemm_eval.sweep.metrics import as_constraints, is_maximized
from gemm_eval.sweep.result import SweepResult
from gemm_eval.sweep.sampling import Adaptive, Grid, Sampling, check_count
from gemm_eval.sweep.space import Space
from gemm_eval.sweep.store import FolderStore, MemoryStore, Store
from gemm_eval.sweep.workload import as_workloads

__all__ = ["sweep"]

_MIN_CHUNK, _MAX_CHUNK, _CHUNKS = 16, 1024, 64


def sweep(
    space: Space,
    workloads: Any,
    objectives: str | Sequence[str] = ("latency_us",),
    constraints: Any = (),
    *,
    sampling: Sampling | Adaptive | None = None,
    dtype: str | None = None,
    path: str | os.PathLike[str] | None = None,
    executor: Any = None,
    retries: int = 3,
    chunk_size: int | None = None,
    allow_idle_cores: bool = False,
    library: str | None = None,
    l2: str | None = None,
    clock: str | None = None,
    progress: bool | None = None,
) -> SweepResult:
    """Evaluate every point of a design space against workloads.

    The same points, in the same order and to the bit, whatever the executor, the chunks and the interruptions.

    Args:
        space: the chips.
        workloads: what runs on each: GEMMs as (G, M, K, N) or `GemmProblem`, alone or with counts; a model (its prefill
            and decode of 2,048 tokens); a mapping of names to GEMMs; or `Workload`s, as `transformer_workloads` makes.
        objectives: metric columns that count, see `gemm_eval.sweep.METRICS`; with several workloads also one of
            theirs (``"decode_latency_us"``), or any other column (``"area_mm2"``). More is better as `MAXIMIZED` says.
        constraints: ``"area_mm2 <= 800"``: points that break one stay in the table and say so, but are in no front. A
            constraint on a field is checked before the search.
        sampling: `Grid()` (the default, all combinations), `Random`, `LatinHypercube` or `Adaptive`.
        dtype: types of plain (G, M, K, N) and of models; default: the default type of the base arch.
        path: a folder to stream chunks into, as parquet; a call that was interrupted goes on where it was. Without,
            all is kept in memory.
        executor: None: all cores of this machine. Else a `concurrent.futures` executor or a Dask client; a space with
            functions needs one that can send them (Dask and threads can, processes take expressions).
        retries: how often Dask repeats a chunk that failed; what a lost worker had is given to others anyway.
        chunk_size: points that one job evaluates.
        allow_idle_cores: as for `GEMMEvaluator`, but off unless asked for: on, a search of 64 cores takes ten times as
            long.
        library, l2, clock: as for `GEMMEvaluator`, for GPUs.
        progress: show a progress bar with rate and remaining time; None: if stderr is a terminal and it takes long.

    Raises:
        InvalidOptionError: an option, constraint or objective that cannot be.
        GemmEvalError: a package of the extra ``[sweep]`` is missing, or a worker is lost that nobody replaces.
    """
    import_pyarrow()
    if not isinstance(space, Space):
        raise InvalidOptionError(f"space must be a Space, got {space!r}")
    types = {arch.default_dtype for arch in space.bases.values()}
    if dtype is None and len(types) > 1:
        raise InvalidOptionError(f"dtype must be given: base archs have different ones ({', '.join(sorted(types))})")
    loads = as_workloads(workloads, next(iter(space.bases.values())).default_dtype, dtype)
    sampling = Grid() if sampling is None else sampling
    if isinstance(sampling, Adaptive):
        num_points = sampling.num_points
        first_row = space.rows_of(np.full((1, len(space.drawn)), 0.5))[0]
    else:
        num_points = sampling.num_points_of(space)
        first_row = sampling.rows(space, 0, 1)[0]
    schema = make_schema(space, loads, first_row)
    limits = as_constraints(constraints)
    aims = (objectives,) if isinstance(objectives, str) else tuple(objectives)
    for what, names in (("objective", aims), ("constraint", [one.column for one in limits])):
        for name in names:
            if schema.kinds.get(name) not in ("whole", "number"):
                known = ", ".join(key for key, kind in schema.kinds.items() if kind in ("whole", "number"))
                raise InvalidOptionError(f"{what} {name!r} is no column of numbers; there are {known}")
    options = {"allow_idle_cores": allow_idle_cores, "library": library, "l2": l2, "clock": clock}
    task = Task(space, loads, limits, options, schema)
    if chunk_size is None:
        chunk_size = min(max(-(-num_points // _CHUNKS), _MIN_CHUNK), _MAX_CHUNK)
    check_count("chunk_size", chunk_size)
    description = describe(task, aims, sampling, num_points, chunk_size)
    store: Store = MemoryStore(schema) if path is None else FolderStore(path, schema, description)
    result = SweepResult(store, description)
    with open_workers(executor, retries) as workers, progress_bar(num_points, "points", progress) as advance:
        if isinstance(sampling, Adaptive):
            proposer = Proposer(space, sampling, [is_maximized(name, loads) for name in aims])
            for first in range(0, num_points, sampling.batch_size):
                rows = proposer.propose(min(sampling.batch_size, num_points - first))
                jobs = _jobs(task, store, rows, first, chunk_size)
                _run(workers, store, jobs, advance)
                told = result.read(first, first + len(rows), (*aims, "excluded"))
                values = np.array([told[name].to_numpy(zero_copy_only=False) for name in aims]).T
                proposer.tell(values, told["excluded"].to_numpy(zero_copy_only=False) == "")
        else:
            done = store.done()
            firsts = (first for first in range(0, num_points, chunk_size) if first not in done)
            ahead = (
                (first, evaluate_rows, (task, sampling.rows(space, first, min(first + chunk_size, num_points)), first))
                for first in firsts
            )
            advance(sum(min(chunk_size, num_points - first) for first in done))
            _run(workers, store, ahead, advance)
    return result


def _jobs(task: Task, store: Store, rows: Sequence[Any], first: int, chunk_size: int) -> Iterator[Any]:
    done = store.done()
    for start in range(0, len(rows), chunk_size):
        if first + start not in done:
            yield first + start, evaluate_rows, (task, rows[start : start + chunk_size], first + start)


def _run(workers: Workers, store: Store, jobs: Iterator[Any], advance: Any) -> None:
    for first, table in workers.run(jobs):
        store.put(first, table)
        advance(table.num_rows)
