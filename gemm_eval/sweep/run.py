"""`sweep` evaluates every point of a design space against workloads, in chunks, anywhere; `what_if` some changes."""

import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, load_arch
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.progress import progress_bar
from gemm_eval.sweep.chunk import SweepWork, evaluate_rows
from gemm_eval.sweep.fields import build_arch, check_field
from gemm_eval.sweep.folder import FolderStore, Rows, Store, as_folder, claim
from gemm_eval.sweep.metrics import Constraint, Schema, as_constraints, as_workloads, is_maximized, make_schema
from gemm_eval.sweep.result import SweepResult
from gemm_eval.sweep.space import Adaptive, Grid, LatinHypercube, Proposer, Random, Space, check_count
from gemm_eval.sweep.sweep_file import chunks_of, describe
from gemm_eval.words import check_extra, check_flag, did_you_mean, needs_extra, shown

Job = tuple[int, Callable[..., Any], tuple[Any, ...]]
"""The number of a chunk, what is called, and with what."""

_AHEAD = 2  # chunks that wait for each worker, so that none is ever idle


class Workers(NamedTuple):
    """An executor, how many jobs it runs at once, errors that say that a worker is gone, and arguments of every job."""

    executor: Executor
    num_workers: Callable[[], int]
    lost: tuple[type[BaseException], ...] = (BrokenExecutor,)
    more_arguments: tuple[Any, ...] = ()

    def run(self, jobs: Iterator[Job]) -> Generator[tuple[int, Any], None, None]:
        """Yield (number, result) of each job, in the order they finish; those that wait are cancelled at the end."""
        waiting: dict[Future[Any], int] = {}
        try:
            while True:
                room = (1 + _AHEAD) * self.num_workers() - len(waiting)
                for number, function, arguments in islice(jobs, max(0, room)):
                    waiting[self.executor.submit(function, *arguments, *self.more_arguments)] = number
                if not waiting:
                    return
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                # what is good first: it is kept even if another has failed
                for future in sorted(done, key=lambda future: (future.exception() is not None, waiting[future])):
                    number = waiting.pop(future)
                    yield number, future.result()
        except self.lost as error:
            raise GemmEvalError(
                f"a worker of the executor died ({type(error).__name__}: {error}); what is done is kept if the sweep "
                "has a path: the same call, with an executor that works, goes on there"
            ) from error
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def open_workers(executor: Any, retries: int) -> Iterator[Workers]:
    """Yield workers of an executor, see `sweep`; None: a thread for each core of this machine."""
    num_cores = os.cpu_count() or 1
    if executor is None:
        is_stopped = threading.Event()
        with ThreadPoolExecutor(num_cores, thread_name_prefix="gemm_eval.sweep") as threads:
            try:
                yield Workers(threads, lambda: num_cores, more_arguments=(is_stopped.is_set,))
            finally:
                is_stopped.set()
    elif hasattr(executor, "get_executor") and hasattr(executor, "nthreads"):
        with needs_extra("a Dask client", "sweep"):
            from distributed import KilledWorker

        with executor.get_executor(pure=False, retries=retries) as cluster:
            # clusters grow and shrink; one without threads yet gets a chunk that waits for the first
            num_workers = lambda: sum(executor.nthreads().values()) or 1  # noqa: E731
            yield Workers(cluster, num_workers, lost=(KilledWorker, BrokenExecutor))
    elif isinstance(executor, Executor):
        known = getattr(executor, "_max_workers", None)
        num = known if isinstance(known, int) else num_cores
        yield Workers(executor, lambda: num)
    else:
        raise InvalidOptionError(
            f"executor must be None, a concurrent.futures executor or a Dask client, got {shown(executor)}"
        )


_MIN_CHUNK, _MAX_CHUNK, _CHUNKS = 16, 1024, 64
_MAX_CHUNK_GEMMS = 1 << 14  # a few seconds of searches
_NUM_SHOWN = 16  # points that tell what dependent variables are


def sweep(
    space: Space,
    workloads: Any,
    objectives: str | Sequence[str] = ("latency_us",),
    constraints: Any = (),
    *,
    sampling: Grid | Random | LatinHypercube | Adaptive | None = None,
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
            and decode of 2,048 tokens, attention fused); a mapping of names to GEMMs; or `Workload`s, as
            `transformer_workloads` makes.
        objectives: metric columns that count, see `gemm_eval.sweep.METRICS`; with several workloads also one of
            theirs (``"decode_latency_us"``), or any other column (``"area_mm2"``). More is better as `MAXIMIZED` says.
        constraints: ``"area_mm2 <= 800"``: points that break one stay in the table and say so, but are in no front. A
            constraint on a field is checked before the search.
        sampling: `Grid()` (the default, all combinations), `Random`, `LatinHypercube` or `Adaptive`.
        dtype: types of plain (G, M, K, N) and of models; default: the default type of the base arch, and of a model
            the types that `gemm-eval gemms` gives it on the base arch.
        path: a folder to stream chunks into, as parquet; a call that was interrupted goes on where it was. Without,
            all is kept in memory.
        executor: None: all cores of this machine. Else a `concurrent.futures` executor or a Dask client; a space with
            functions needs one that can send them (Dask and threads can, processes take expressions).
        retries: how often Dask repeats a chunk that failed; what a lost worker had is given to others anyway.
        chunk_size: points that one job evaluates, and a file holds; a started folder keeps its own.
        allow_idle_cores: as for `GEMMEvaluator`, but off unless asked for: on, a search of 64 cores takes ten times as
            long.
        library, l2, clock: as for `GEMMEvaluator`, for GPUs. Nothing quantizes A first.
        progress: show progress on stderr, with rate and remaining time; None: if it takes over a second.

    Raises:
        InvalidOptionError: an option, constraint or objective that cannot be.
        StorageError: the folder cannot be written, the disk is full, or another sweep is at work in it.
        GemmEvalError: a package of the extra ``[sweep]`` is missing, a worker is lost and not replaced, or the
            description in the folder is damaged. Parts of the folder that are damaged or of another sweep are set
            aside with a `RuntimeWarning`, and their points evaluated again.
    """
    check_extra("a sweep", "sweep", "pandas", "pyarrow")
    if not isinstance(space, Space):
        raise InvalidOptionError(f"space must be a Space, got {shown(space)}")
    types = {arch.default_dtype for arch in space.bases.values()}
    if dtype is None and len(types) > 1:
        raise InvalidOptionError(f"dtype must be given: base archs have different ones ({', '.join(sorted(types))})")
    loads = as_workloads(workloads, next(iter(space.bases.values())), dtype)
    sampling = Grid() if sampling is None else sampling
    num_points, first_rows = _first_rows(space, sampling)
    schema = make_schema(space, loads, first_rows)
    limits = as_constraints(constraints)
    aims = (objectives,) if isinstance(objectives, str) else tuple(objectives)
    _check_columns(schema, aims, limits)
    options = {"allow_idle_cores": allow_idle_cores, "library": library, "l2": l2, "clock": clock}
    _check_options(space, options)
    work = SweepWork(space, loads, limits, options, schema)
    if chunk_size is None:
        most = max(1, min(_MAX_CHUNK, _MAX_CHUNK_GEMMS // (len(work.problems) + len(work.attention))))
        chunk_size = min(max(-(-num_points // _CHUNKS), _MIN_CHUNK), most)
    check_count("chunk_size", chunk_size)
    description = describe(work, aims, sampling, num_points, chunk_size, first_rows)
    store = Store(schema)
    with ExitStack() as stack:
        if path is not None:
            # a grid is the same whatever is looked for in it; chunks of another size would overlap those that are there
            ignore = ["chunk_size"] if isinstance(sampling, Adaptive) else ["chunk_size", "objectives"]
            folder = as_folder(path)
            description = stack.enter_context(claim(folder, description, ignore))
            store = FolderStore(folder, schema, description)
        workers = stack.enter_context(open_workers(executor, retries))
        advance = stack.enter_context(progress_bar(num_points, "points", progress))
        chunks = chunks_of(description)

        def run(start: int, stop: int, rows_of: Callable[[int, int], Rows]) -> None:
            _run(work, store, workers, advance, chunks.between(start, stop), rows_of)

        if isinstance(sampling, Adaptive):
            _run_adaptive(work, store, sampling, aims, run)
        else:
            run(0, num_points, partial(sampling.rows, space))
    return SweepResult(store, description | {"objectives": list(aims)})


def _run(
    work: SweepWork, store: Store, workers: Workers, advance: Callable[[int], None],
    chunks: Iterator[tuple[int, int]], rows_of: Callable[[int, int], Rows],
) -> None:  # fmt: skip
    """Evaluate the chunks that the store does not hold, given what points choose."""
    waiting: dict[int, Rows] = {}

    def jobs() -> Iterator[Job]:
        for first, num in chunks:
            rows = known = rows_of(first, first + num)
            if any(map(callable, work.space.dependent.values())):  # what a function says tells it from another
                known = [tuple(work.space.values(row)[0].values()) for row in rows]
            if store.holds(first, known):
                advance(num)
            else:
                waiting[first] = known
                yield first, evaluate_rows, (work, rows, first)

    # closed at once after an error: what waits must not run on until somebody has dealt with it
    with closing(workers.run(jobs())) as results:
        for first, table in results:
            store.put(first, waiting.pop(first), table)
            advance(table.num_rows)


def _run_adaptive(
    work: SweepWork, store: Store, sampling: Adaptive, aims: Sequence[str], run: Callable[[int, int, Any], None]
) -> None:
    """Evaluate batch by batch; the proposer is told of points that the store holds as of new ones."""
    proposer = Proposer(work.space, sampling, [is_maximized(name, work.workloads) for name in aims])
    for begin in range(0, sampling.num_points, sampling.batch_size):
        rows = proposer.propose(min(sampling.batch_size, sampling.num_points - begin))
        run(begin, begin + len(rows), lambda first, stop, rows=rows, begin=begin: rows[first - begin : stop - begin])
        done = store.take(np.arange(begin, begin + len(rows)), list(dict.fromkeys([*aims, "excluded"])))
        values = np.stack([done[name].to_numpy().astype(np.float64) for name in aims], axis=1)
        proposer.tell(values, done["excluded"].to_numpy() == "")


def _first_rows(space: Space, sampling: Any) -> tuple[int, Rows]:
    """Return the number of points, and what a few choose."""
    if isinstance(sampling, Adaptive):
        return sampling.num_points, space.rows_of(np.full((1, len(space.drawn)), 0.5))
    if not callable(getattr(sampling, "rows", None)):
        raise InvalidOptionError(f"sampling must be Grid(), Random, LatinHypercube or Adaptive, got {shown(sampling)}")
    num_points = sampling.num_points_of(space)
    return num_points, sampling.rows(space, 0, min(_NUM_SHOWN, num_points))


def _check_columns(schema: Schema, aims: Sequence[str], limits: Sequence[Constraint]) -> None:
    if not aims:
        raise InvalidOptionError("at least one objective is needed")
    numbers = [name for name, kind in schema.kinds.items() if kind in ("whole", "number")]
    for what, names in (("objective", aims), ("constraint", [limit.column for limit in limits])):
        for name in names:
            if name not in numbers:
                raise InvalidOptionError(
                    f"{what} {shown(name)} is no column of numbers; there are {', '.join(numbers)}"
                    f"{did_you_mean(name, numbers)}"
                )


def _check_options(space: Space, options: Mapping[str, Any]) -> None:
    """Let evaluators of the base archs look at the options, each at its own: a space may hold chips of both kinds."""
    of_gpus = {name: value for name, value in options.items() if name != "allow_idle_cores"}
    check_flag("allow_idle_cores", options["allow_idle_cores"])
    gpus = [arch for arch in space.bases.values() if isinstance(arch, GpuSpec)]
    if not gpus and any(value is not None for value in of_gpus.values()):
        raise InvalidOptionError("library, l2 and clock are for GPUs, and no base arch is one")
    for arch in gpus:
        GEMMEvaluator(arch, disk_cache=False, **of_gpus)


def what_if(
    arch: ArchSpec | str | os.PathLike[str],
    workloads: Any,
    changes: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]],
    *,
    objectives: str | Sequence[str] = ("latency_us",),
    **options: Any,
) -> Any:
    """Return a DataFrame of the chip as it is and after each change, with objectives and their ratio to the first row.

    Args:
        arch: the chip.
        workloads: as for `sweep`.
        changes: fields and their new values, each set by itself: a list, or a mapping with a name for each.
            ``[{"dram_gb_per_s": 2000.0}, {"num_cores": 16, "sram_bytes": 1 << 21}]``
        objectives: metric columns; each has a second one, ``latency_us_ratio``.
        options: as for `sweep`: dtype, allow_idle_cores, library, l2, clock.

    Raises:
        InvalidOptionError, ArchValidationError: a change that makes no valid spec.
    """
    base = load_arch(arch) if isinstance(arch, str | os.PathLike) else arch
    if not isinstance(base, MulticoreSpec | GpuSpec):
        raise InvalidOptionError(f"arch must be a spec, a preset name or a path, got {shown(arch)}")
    if isinstance(changes, Mapping):
        if not all(isinstance(change, Mapping) for change in changes.values()):
            raise InvalidOptionError(f"changes are tables of fields, by name or in a list, got {shown(changes)}")
        named = {str(name): change for name, change in changes.items()}
    else:
        named = {}
        for change in changes:
            is_number = {name: isinstance(of, int | float) and not isinstance(of, bool) for name, of in change.items()}
            texts = [f"{name} {of:,}" if is_number[name] else f"{name} {of}" for name, of in change.items()]
            named[", ".join(texts)] = change
    archs = {"as it is": base}
    for name, change in named.items():
        for field in change:
            check_field(base, field)
        archs[name] = build_arch(base, change)
    aims = [objectives] if isinstance(objectives, str) else list(dict.fromkeys(objectives))
    # labels may be any text, and two changes may give the same chip: they are told apart by their order
    numbered = {f"{at}": arch for at, arch in enumerate(archs.values())}
    result = sweep(Space(numbered), workloads, aims, progress=False, **options)
    table = result.to_pandas([*aims, "excluded"])
    table.insert(0, "change", list(archs))
    for name in aims:
        column = table[name].to_numpy(np.float64)
        table.insert(list(table.columns).index(name) + 1, f"{name}_ratio", column / column[0])
    return table
