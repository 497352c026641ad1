"""Choices by the model on a GPU: kernel configs, and the M up to which 4-bit weights beat a dense GEMM.

At few rows a GEMM takes the time of reading its weights, of which 4 bits are a quarter; at many rows that of its
products. In between both sides climb in steps at different M: there is rarely one M that parts wins from losses.
"""

import os
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, list_archs, load_arch
from gemm_eval.errors import InvalidOptionError, InvalidProblemError, UnsupportedError
from gemm_eval.evaluate.evaluator import GEMMEvaluator
from gemm_eval.mapping import KernelConfig
from gemm_eval.models.gpu import BOUNDS, OURS, cached_by_arch, pack_gpu, unpack_gpu_cost
from gemm_eval.models.gpu.w4a16 import W4A16_SIZES, has_our_kernels
from gemm_eval.search import find_best_config, find_top_configs
from gemm_eval.units import time_text
from gemm_eval.words import as_integer, check_word, plain_number, shown
from gemm_eval.workload import GemmProblem, run_options

EVERY_M = 1024
"""Up to here every M is evaluated."""
GRID_STEP = 64
"""Beyond, the last M of every full row of tiles of this many rows, and the one after it: time climbs in steps there."""
MAX_M = 1 << 20
DENSE_DTYPES = ("fp16", "bf16")  # of the dense weights; the activations are of the same type on both sides

_NUM_RANGES_SHOWN = 4

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class MRange(NamedTuple):
    """`first` <= M <= `last`."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first:,}" if self.first == self.last else f"{self.first:,}..{self.last:,}"


@dataclass(frozen=True, eq=False)
class Crossover:
    """W4A16 beside the dense GEMM C[M,N] = A[M,K] x B[K,N] on one GPU, over M; `str` says it in words.

    Both sides are their library's best config by the cost model: gemm-eval for W4A16, cublas for dense weights.

    Attributes:
        group_size: weights along K that share a scale; -1: one scale a column.
        dense_dtype: type of the dense weights, and of the activations of both.
        min_speedup: how many times as long the dense GEMM must take for W4A16 to win.
        is_calibrated: whether the coefficients of both libraries were fitted on timings of this GPU.
        M: [num_samples], rising: every M up to `EVERY_M`, both sides of every multiple of `GRID_STEP` beyond, and both
            sides of each change of winner, found by bisection.
        w4a16_us, dense_us: [num_samples], latency in microseconds.
        w4a16_bound, dense_bound: [num_samples] of words, what bounds each: see `GEMMResult.bound`.
    """

    arch_name: str
    K: int
    N: int
    group_size: int
    dense_dtype: str
    l2: str
    clock: str
    max_M: int  # noqa: N815 (M is the field's name)
    min_speedup: float
    is_calibrated: bool
    M: Integers
    w4a16_us: Floats
    dense_us: Floats
    w4a16_bound: npt.NDArray[np.object_]
    dense_bound: npt.NDArray[np.object_]

    @cached_property
    def speedup(self) -> Floats:
        """[num_samples]: how many times as long the dense GEMM takes; above 1, W4A16 is faster."""
        return self.dense_us / self.w4a16_us

    @cached_property
    def is_win(self) -> npt.NDArray[np.bool_]:
        """[num_samples]: whether the speedup is above `min_speedup`."""
        return self.speedup > self.min_speedup

    def __repr__(self) -> str:
        return (
            f"<Crossover of K={self.K} N={self.N} group {self.group_size} against {self.dense_dtype} on "
            f"{self.arch_name}: first loss at M = {self.first_loss_M}, last win at {self.last_win_M}>"
        )

    @property
    def first_loss_M(self) -> int | None:  # noqa: N802
        """The smallest M at which W4A16 does not win; None: it always wins."""
        return None if self.always_pays else int(self.M[np.argmin(self.is_win)])

    @property
    def last_win_M(self) -> int | None:  # noqa: N802
        """The largest M at which W4A16 wins; None: it never does."""
        return None if self.never_pays else int(self.M[np.flatnonzero(self.is_win)[-1]])

    @property
    def always_pays(self) -> bool:
        """True if W4A16 wins at every M up to `max_M`."""
        return bool(self.is_win.all())

    @property
    def never_pays(self) -> bool:
        """True if W4A16 wins at no M up to `max_M`."""
        return not self.is_win.any()

    @cached_property
    def win_ranges(self) -> tuple[MRange, ...]:
        """The ranges of M in which W4A16 wins, rising."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self.is_win, [False]]).astype(np.int8)))
        return tuple(MRange(int(self.M[a]), int(self.M[b - 1])) for a, b in edges.reshape(-1, 2).tolist())

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return a short text: where W4A16 wins, and what bounds each side there."""
        group = "one scale a column" if self.group_size < 0 else f"groups of {self.group_size}"
        source = "calibrated" if self.is_calibrated else "analytic"
        lines = [
            f"W4A16 ({group}) against {self.dense_dtype} (cuBLAS), K={self.K} N={self.N} on {self.arch_name}, "
            f"{self.l2} L2, {self.clock} clock, M = 1..{self.max_M:,}; predicted, {source}.",
            self._say_ranges(),
        ]
        points = {"At few rows": 0, "Most gained": int(np.argmax(self.speedup))}
        if self.first_loss_M is not None:
            points["First loss"] = int(np.argmin(self.is_win))
            points["Most lost" if self.speedup.min() < 1.0 else "Least gained"] = int(np.argmin(self.speedup))
        if self.last_win_M is not None:
            points["Last win"] = int(np.flatnonzero(self.is_win)[-1])
        points["At most rows"] = len(self.M) - 1
        words_of: dict[int, str] = {}
        for words, sample in points.items():
            words_of.setdefault(sample, words)
        return "\n".join([*lines, *(f"{words}, {self._say_sample(i)}" for i, words in sorted(words_of.items()))])

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, ready for JSON; `curve` has a list for each column."""
        names = [item.name for item in fields(self)]
        scalars, columns = names[: names.index("is_calibrated")], names[names.index("M") :]
        columns.insert(columns.index("w4a16_bound"), "speedup")
        answers = ("first_loss_M", "last_win_M", "always_pays", "never_pays")
        return {
            **{name: getattr(self, name) for name in scalars},
            "source": "calibrated" if self.is_calibrated else "analytic",
            **{name: getattr(self, name) for name in answers},
            "win_ranges": [list(item) for item in self.win_ranges],
            "curve": {name: getattr(self, name).tolist() for name in columns},
        }

    def _say_ranges(self) -> str:
        faster = "faster" if self.min_speedup == 1.0 else f"more than {self.min_speedup:g} times as fast"
        if self.always_pays:
            return f"W4A16 is {faster} at every M."
        if self.never_pays:
            return f"W4A16 is {faster} at no M."
        first = ", ".join(map(str, self.win_ranges[:_NUM_RANGES_SHOWN]))
        more = len(self.win_ranges) - _NUM_RANGES_SHOWN
        rest = f" and {more} more range{'s' if more > 1 else ''} up to {self.last_win_M:,}" if more > 0 else ""
        return f"W4A16 is {faster} at M = {first}{rest}; first loss at M = {self.first_loss_M:,}."

    def _say_sample(self, place: int) -> str:
        ours, dense = BOUNDS[self.w4a16_bound[place]], BOUNDS[self.dense_bound[place]]
        return (
            f"M = {self.M[place]:,}: {self.speedup[place]:.2f}x; W4A16 {time_text(self.w4a16_us[place])}, bound by "
            f"{ours}; {self.dense_dtype} {time_text(self.dense_us[place])}, bound by {dense}."
        )


def w4a16_crossover(
    arch: ArchSpec | GEMMEvaluator | str | os.PathLike[str], K: int, N: int, *, group_size: int = 128,
    dense_dtype: str = "fp16", l2: str = "cold", clock: str = "burst", max_M: int = 16384, min_speedup: float = 1.0,
) -> Crossover:  # fmt: skip
    """Find the M at which W4A16 stops beating a dense GEMM: our kernels against cuBLAS, each with its best config.

    Exact up to M = `EVERY_M`. Beyond, every change of winner is found that lies alone between two samples (see
    `Crossover.M`): the costs of both sides climb in steps after multiples of `GRID_STEP`, and are smooth in between.

    Args:
        arch: a GPU, its name or path, or an evaluator of one, whose memory is used then.
        K, N: reduction length and columns, multiples of 8.
        group_size: weights along K that share a scale: 32, 64 or 128; -1 for one scale a column.
        dense_dtype: of the dense weights and of all activations: ``"fp16"`` or ``"bf16"``.
        l2, clock: as for `GEMMEvaluator.evaluate`.
        max_M: the largest M that is looked at.
        min_speedup: what counts as a win: 1.05 asks W4A16 for 5%, say for what the quantization costs elsewhere.

    Raises:
        InvalidProblemError: sizes that make no GEMM.
        InvalidOptionError: an option out of its range.
        InvalidInputError: `arch` is no architecture.
        UnsupportedError: the arch is no GPU, or our W4A16 kernels do not take these sizes or types.
    """
    evaluator = arch if isinstance(arch, GEMMEvaluator) else GEMMEvaluator(arch)
    check_word("dense_dtype", dense_dtype, DENSE_DTYPES)
    max_M = as_integer("max_M", max_M, 1, MAX_M)
    least = plain_number(min_speedup)
    if least is None or least <= 0.0:
        raise InvalidOptionError(f"min_speedup must be a positive number, got {shown(min_speedup)}")
    if not isinstance(evaluator.arch, GpuSpec):
        raise UnsupportedError(f"W4A16 kernels run on GPUs; {evaluator.arch.name} is none")
    types: Any = {"input_dtype": dense_dtype, "output_dtype": dense_dtype, "l2": l2, "clock": clock}
    ours = types | {"weight_dtype": "int4", "group_size": group_size, "library": "gemm-eval"}
    dense = types | {"weight_dtype": dense_dtype, "library": "cublas"}
    # says what is wrong with sizes, types and options before they are used below
    first = evaluator.evaluate(1, 1, K, N, **ours)
    K, N = first.problem.K, first.problem.N
    M = _samples(max_M)
    while True:
        sizes = np.column_stack([np.ones_like(M), M, np.full_like(M, K), np.full_like(M, N)])
        # of one side timings may have told more than of the other: what the model says of both is compared
        sides = [
            evaluator.evaluate_many(sizes, correction=False, progress=False, **options) for options in (ours, dense)
        ]
        between = _undecided(M, sides[1]["latency_us"] / sides[0]["latency_us"] > least)
        if not len(between):
            break
        M = np.union1d(M, between)  # the evaluator remembers the rest
    M.setflags(write=False)
    return Crossover(
        evaluator.arch.name, K, N, group_size, dense_dtype, l2, clock, max_M, float(min_speedup),
        all(side[0].source == "calibrated" for side in sides),
        M, *(side["latency_us"] for side in sides), *(side["bound"] for side in sides),
    )  # fmt: skip


def _samples(max_M: int) -> Integers:
    every = np.arange(1, min(max_M, EVERY_M) + 1, dtype=np.int64)
    edges = np.arange(EVERY_M, max_M + 1, GRID_STEP, dtype=np.int64)
    beyond = np.unique(np.concatenate([edges, edges + 1, [max_M]]))
    return np.concatenate([every, beyond[(beyond > EVERY_M) & (beyond <= max_M)]]).astype(np.int64)


def _undecided(M: Integers, is_win: npt.NDArray[np.bool_]) -> Integers:
    gaps = np.flatnonzero((is_win[1:] != is_win[:-1]) & (np.diff(M) > 1))
    middles: Integers = (M[gaps] + M[gaps + 1]) // 2
    return middles


_MAX_CONFIGS = 1 << 40  # more than there are
_packed = cached_by_arch(pack_gpu)  # a spec's hash takes longer than the search
_presets: dict[str, ArchSpec] = {}  # reading one takes a thousand times as long as a search


def select_config(
    problem: GemmProblem, arch: GpuSpec | str, k: int = 1, *, library: str | None = None, l2: str = "cold",
    clock: str = "burst",
) -> tuple[KernelConfig, ...]:  # fmt: skip
    """Return the `k` kernel configs that the model finds fastest for a GEMM, best first; fewer if there are fewer.

    For fp16 or bf16 activations and 4-bit weights these are kernels that `gemm_eval.kernels.w4a16_gemm` runs, for fp8
    ones on Hopper (dtype "w4a8_fp8") those of `w4a8_gemm`, on GPUs where `GEMMEvaluator.evaluate` answers for
    TensorRT-LLM's or a hypothetical kernel too. Takes some tens of microseconds for k = 1, once the model is loaded.

    Args:
        problem: sizes and data types.
        arch: a GPU's spec, a preset's name, or the path of a file. A preset is read once, a file at every call, and a
            spec is recognized as the same object: keep it.
        k: how many.
        library, l2, clock: as in `GEMMEvaluator.evaluate`, but that our kernels are the default wherever they can run.

    Raises:
        InvalidProblemError: `problem` is none.
        InvalidOptionError: `arch` is no GPU, k < 1, or another library, L2 or clock state than there are.
        UnsupportedError: GPU, types and library do not go together.
        InfeasibleError: no kernel can run it.
    """
    spec = _load(arch) if isinstance(arch, str) else arch
    if not isinstance(spec, GpuSpec):
        what = spec.name if isinstance(spec, MulticoreSpec) else shown(spec)
        raise InvalidOptionError(f"select_config chooses kernels of GPUs, {what} is none")
    if not isinstance(problem, GemmProblem):
        raise InvalidProblemError(f"problem must be a GemmProblem, got {shown(problem)}")
    k = as_integer("k", k, 1, _MAX_CONFIGS)
    types = problem.types
    if library is None and W4A16_SIZES.takes(*problem.sizes[1:]) and has_our_kernels(spec, types):
        library = OURS
    options = run_options(library, l2, clock, correction=True if isinstance(library, str) and library == OURS else None)
    packed = _packed(spec, types, options)
    find = find_best_config(spec, problem, packed) if k == 1 else find_top_configs(spec, problem, packed, k)
    return tuple(unpack_gpu_cost(record).config for record in find)


def _load(name_or_path: str) -> ArchSpec:
    spec = _presets.get(name_or_path)
    if spec is None:
        spec = load_arch(name_or_path)
        if name_or_path in list_archs():
            spec = _presets.setdefault(name_or_path, spec)
    return spec
