"""`moe_layer` and `moe_layers`: runs of layers of experts (one rank in one draw), their grouped GEMMs in one batch."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import exp, prod
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, GpuSpec, L2State, MulticoreSpec
from gemm_eval.errors import GemmEvalError, InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import (
    CORRECTION,
    GEMMEvaluator,
    GEMMTable,
    Kind,
    ProblemBatch,
    chip_interval,
    source_of,
    sum_interval,
)
from gemm_eval.models import gpu as model
from gemm_eval.models.gpu import layer_terms as gpu_layer_terms
from gemm_eval.models.multicore import layer_terms as multicore_layer_terms
from gemm_eval.moe.layer import LAYER_FIELDS, MoeLayer, RoutedDraws, route, types_of
from gemm_eval.moe.table import BREAKDOWN, DrawColumns, MoeLayerResult, MoeLayerTable
from gemm_eval.units import FLOP_PER_MAC
from gemm_eval.words import check_word, refusal, shown
from gemm_eval.workload import MAX_MACS, GemmProblem, GemmTypes, MoeWork, RowGroups, RunOptions, run_options

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Works = Iterable[tuple[str | None, Rows, MoeWork]]

_WORK_SIZES = ("num_tokens", "hidden", "inter", "num_experts", "num_local_experts", "topk")
_SHARED_SIZES = ("shared_width", "shared_tokens")
_GEMM1, _GEMM2, _SHARED, _CORRECTION = (
    BREAKDOWN.index(name) for name in ("gemm1_us", "gemm2_us", "shared_us", CORRECTION)
)


class Runs(NamedTuple):
    """All runs of some layers: those of a draw stand together, and those of a layer.

    `gemm_rows` [num_runs, 2] and `shared_rows` [num_layers, 2] are the places of GEMM 1 and 2 in `batch`; -1: the rank
    has no token, or there are no shared experts. `libraries` run the experts on a GPU (None: what runs such GEMMs);
    `padded` [num_layers, 2] is the width of tokens, and columns of gate or up, that they compute on a rank. `errors`
    says why the arch or the library cannot run a layer, which then has no GEMMs.
    """

    layers: list[MoeLayer]
    types: list[GemmTypes]
    routed: list[RoutedDraws]
    batch: ProblemBatch
    layer_of: Rows
    gemm_rows: Rows
    shared_rows: Rows
    libraries: list[str | None]
    padded: Rows
    errors: dict[int, GemmEvalError]

    def column(self, name: str) -> Rows:
        """Return what `RoutedDraws` has by that name, [num_runs]."""
        return np.concatenate([getattr(draws, name) for draws in self.routed])


class _Batch:
    """GEMMs that are listed one by one, and the kinds that they are of."""

    def __init__(self, evaluator: GEMMEvaluator, asked: RunOptions) -> None:
        self._evaluator, self._asked = evaluator, asked
        self._numbers: dict[tuple[GemmTypes, str | None, bool, float], int] = {}
        self._kinds: list[Kind] = []
        self._sizes: list[tuple[int, int, int, int]] = []
        self._kind_of: list[int] = []
        self._row_groups: list[RowGroups | None] = []

    def add(
        self, types: GemmTypes, rows: int | RowGroups, K: int, N: int, library: str | None, call_weights: float = 1.0
    ) -> int:
        """List a GEMM of so many rows, or a grouped one whose largest group comes first; return its place."""
        groups = None if isinstance(rows, int) else rows
        sizes = (1, rows, K, N) if isinstance(rows, int) else (len(rows), rows[0], K, N)
        if prod(sizes) > MAX_MACS:
            GemmProblem.grouped(groups or (sizes[1],), K, N, **types.words)  # says that it is too large
        key = (types, library, groups is not None, call_weights)
        if key not in self._numbers:
            options = self._asked._replace(library=library)
            kind = self._evaluator.kind_of_types(types, options, is_grouped=groups is not None)
            if kind.options.l2 == L2State.WARM:
                kind = kind._replace(call_weights=call_weights)
            self._evaluator.backend.pack(kind)  # raises where nothing runs such a kind
            self._numbers[key] = len(self._kinds)
            self._kinds.append(kind)
        self._sizes.append(sizes)
        self._kind_of.append(self._numbers[key])
        self._row_groups.append(groups)
        return len(self._sizes) - 1

    def pack(self) -> ProblemBatch:
        sizes, kind_of = np.array(self._sizes, np.int64).reshape(-1, 4), np.array(self._kind_of, np.int64)
        return ProblemBatch(sizes, kind_of, tuple(self._kinds), tuple(self._row_groups))


def make_runs(
    layers: list[MoeLayer], types: list[GemmTypes], evaluator: GEMMEvaluator, asked: RunOptions, *,
    marks_errors: bool = False,
) -> Runs:  # fmt: skip
    """Route the tokens of some layers, at least one, and list the GEMMs.

    `types` [num_layers] are of their GEMMs, `asked` the options of the call. `marks_errors`: keep what the arch or
    the library cannot run in `Runs.errors`, instead of raising it.
    """
    rules = _Rules(evaluator.arch, asked.library, evaluator.preferred.library)
    routed = [route(layer) for layer in layers]
    batch = _Batch(evaluator, asked)
    num_runs = [len(draws.rows) for draws in routed]
    gemm_rows = np.full((sum(num_runs), 2), -1, np.int64)
    shared_rows = np.full((len(layers), 2), -1, np.int64)
    padded = np.zeros((len(layers), 2), np.int64)
    libraries = [rules.library(of) for of in types]
    errors: dict[int, GemmEvalError] = {}
    first_run = np.concatenate(([0], np.cumsum(num_runs))).tolist()
    for number, (layer, draws, of, library) in enumerate(zip(layers, routed, types, libraries, strict=True)):
        padded[number] = hidden, inter = rules.padded(library, of, layer)
        columns = 1 + layer.gated
        try:
            first, second = rules.of_gemms(library, of, layer, hidden, inter)
            for run, groups in enumerate(draws.groups, first_run[number]):
                if groups[0]:
                    # what a warm L2 has to hold are the weights of both GEMMs
                    gemm_rows[run] = (
                        batch.add(of, groups, hidden, columns * inter, first, 1.0 + 1.0 / columns),
                        batch.add(of, groups, inter, hidden, second, 1.0 + columns),
                    )
            if width := layer.shared_width:
                is_plain = library is None or library.partition("/")[0] not in _OF_EXPERTS
                rows, plain = layer.shared_tokens, library if is_plain else None
                shared_rows[number] = (
                    batch.add(of, rows, layer.hidden, columns * width, plain),
                    batch.add(of, rows, width, layer.hidden, plain),
                )
        except UnsupportedError as error:
            if not marks_errors:
                raise
            errors[number] = error
            gemm_rows[first_run[number] : first_run[number + 1]] = shared_rows[number] = -1
    layer_of = np.repeat(np.arange(len(layers)), num_runs)
    return Runs(layers, types, routed, batch.pack(), layer_of, gemm_rows, shared_rows, libraries, padded, errors)


_OF_EXPERTS = {name for name, rules in model.LIBRARIES.items() if rules.grouped_families}


class _Rules:
    """Libraries that run layers, and their tiles: each question is asked once."""

    def __init__(self, arch: ArchSpec, asked: str | None, preferred: str | None) -> None:
        self._gpu = arch if isinstance(arch, GpuSpec) else None
        self._given = asked if self._gpu is None else asked or preferred
        self._of_types: dict[GemmTypes, str | None] = {}
        self._of_shape: dict[tuple[str, GemmTypes, model.LayerShape], tuple[str, str]] = {}

    def library(self, types: GemmTypes) -> str | None:
        """Return what is asked for, or what serving engines take; None: what runs such GEMMs."""
        if self._gpu is None or self._given not in (None, model.AUTO, *model.ENGINES):
            return self._given
        if types not in self._of_types:
            self._of_types[types] = (
                model.engine_library(self._given, self._gpu, types, is_grouped=True)
                if self._given in model.ENGINES
                else model.default_layer_library(self._gpu, types)
            )
        return self._of_types[types]

    def padded(self, library: str | None, types: GemmTypes, layer: MoeLayer) -> tuple[int, int]:
        """Return the width of tokens, and the columns of gate or up, that the library computes on a rank."""
        if library is None or self._gpu is None:
            return layer.hidden, layer.local_inter
        return model.padded_sizes(library.partition("/")[0], types, layer.hidden, layer.local_inter)

    def of_gemms(
        self, library: str | None, types: GemmTypes, layer: MoeLayer, hidden: int, inter: int
    ) -> tuple[str | None, str | None]:
        """Return the library of each GEMM, with the tile that its own rules take where it has some."""
        if self._gpu is None or library is None:
            return library, library
        shape = model.LayerShape(layer.num_tokens, hidden, inter, layer.num_local_experts, layer.topk, 1 + layer.gated)
        key = (library, types, shape)
        if key not in self._of_shape:
            self._of_shape[key] = model.layer_libraries(self._gpu, library, types, shape)
        return self._of_shape[key]


def draw_columns(arch: ArchSpec, runs: Runs, gemms: GEMMTable, *, is_corrected: bool = True) -> DrawColumns:
    """Bring runs together to draws: a draw is one run, or with ``rank="mean"`` the mean of one for each rank.

    `is_corrected`: what timings showed beyond the terms is added, where it was learned.
    """
    rows, layer_of = runs.column("rows"), runs.layer_of
    sizes = {name: values[layer_of] for name, values in _sizes(runs.layers).items()}
    latency_us, dram_bytes = (
        np.append(np.where(gemms.is_feasible, gemms[name].astype(float), np.nan), 0.0)
        for name in ("latency_us", "dram_bytes")
    )
    shared_rows = runs.shared_rows[layer_of]  # of place -1, where nothing runs, the time is 0

    works = list(works_of(runs))
    terms = _other_terms(arch, runs, works, sizes)
    terms[:, [_GEMM1, _GEMM2]] = latency_us[runs.gemm_rows]
    terms[:, _SHARED] += latency_us[shared_rows].sum(axis=1)
    terms[np.isin(layer_of, list(runs.errors))] = np.nan
    of_expert = rows * sizes["inter"].astype(float)
    of_shared = sizes["shared_tokens"] * sizes["shared_width"].astype(float)
    values = {
        "rows": rows.astype(float),
        "num_active": runs.column("num_active").astype(float),
        "max_rows": runs.column("most_rows").astype(float),
        # gate, up and down, or up and down
        "flop": FLOP_PER_MAC * sizes["hidden"] * (2.0 + sizes["gated"]) * (of_expert + of_shared),
        "dram_bytes": dram_bytes[runs.gemm_rows].sum(axis=1) + dram_bytes[shared_rows].sum(axis=1),
    }
    num_draws = [len(draws.imbalance) for draws in runs.routed]
    starts = np.concatenate(([0], np.cumsum(num_draws))).astype(np.int64)
    num = np.repeat([len(draws.rows) // len(draws.imbalance) for draws in runs.routed], num_draws)  # runs of a draw
    first = np.cumsum(num) - num
    means = {name: _means(column, first, num) for name, column in values.items()}
    means["imbalance"] = np.concatenate([draws.imbalance for draws in runs.routed])
    gemm_rows = runs.gemm_rows[_nearest_to_mean(terms.sum(axis=1), first, num)]
    terms = _means(terms, first, num[:, None])
    intervals = _correct(arch, runs, works, gemms, terms, starts, is_corrected=is_corrected)
    return DrawColumns(starts, terms, means, gemm_rows, *intervals)


class _Intervals(NamedTuple):
    """Ends of the intervals of layers in us, and the sources of their times; nan and empty where none can run."""

    low_us: Floats
    high_us: Floats
    source: list[str]


def _correct(
    arch: ArchSpec, runs: Runs, works: Works, gemms: GEMMTable, terms: Floats, starts: Rows, *, is_corrected: bool
) -> _Intervals:
    """Add what was learned to `terms` [draws, terms], and return intervals and sources.

    A correction is of the mean over draws of a layer, without its shared experts. Layers of which nothing was learned
    have the interval of the sum of their GEMMs, whose other terms are known as well as these; a chip has its own.
    """
    num_layers, num_draws = len(runs.layers), np.diff(starts)
    without_shared = np.delete(terms, _SHARED, axis=1).sum(axis=1)
    physics_us = np.add.reduceat(without_shared, starts[:-1]) / num_draws
    whole_us = np.add.reduceat(terms.sum(axis=1), starts[:-1]) / num_draws
    is_warm = all(kind.options.l2 == L2State.WARM for kind in runs.batch.kinds)
    factor, source = np.ones(num_layers), [""] * num_layers
    ends_us = np.full((2, num_layers), np.nan)
    for library, chosen, work in works:
        layers, row_of = np.unique(runs.layer_of[chosen], return_inverse=True)
        learned = None
        if isinstance(arch, GpuSpec) and library is not None:
            mean, us = mean_work(work, row_of, len(layers)), physics_us[layers]
            learned = model.layer_answers(arch, library, mean, us, is_on=is_corrected, is_warm=is_warm)
        if learned is None:
            for layer in layers.tolist():
                source[layer], ends_us[:, layer] = _of_gemms(arch, runs, gemms, layer, whole_us[layer])
            continue
        answers, origin = learned
        factor[layers] = answers.factor
        ends_us[:, layers] = answers.ends_us(whole_us[layers] + (answers.factor - 1.0) * physics_us[layers])
        for layer, of in zip(layers.tolist(), answers.factor.tolist(), strict=True):
            source[layer] = source_of(origin, of, 1.0)
    terms[:, _CORRECTION] = (np.repeat(factor, num_draws) - 1.0) * without_shared
    return _Intervals(ends_us[0], ends_us[1], source)


def _of_gemms(
    arch: ArchSpec, runs: Runs, gemms: GEMMTable, layer: int, latency_us: float
) -> tuple[str, tuple[float, float]]:
    """Return the source and the interval of a layer that are those of its GEMMs, in us."""
    of_runs = runs.gemm_rows[runs.layer_of == layer]
    columns = [(column[column >= 0], 1.0 / len(of_runs)) for column in of_runs.T]
    columns += [(row[row >= 0], 1.0) for row in runs.shared_rows[layer][:, None]]
    names = "latency_us", "low_us", "high_us"
    parts = [
        (share * float(us), share * float(low), share * float(high))
        for rows, share in columns
        for us, low, high in [(gemms[name][rows].sum() for name in names)]
    ]
    sources = {str(gemms["source"][row]) for rows, _ in columns for row in rows.tolist()}
    source = "calibrated" if sources and "analytic" not in sources else "analytic"
    if isinstance(arch, MulticoreSpec):
        return source, chip_interval(arch, latency_us)
    gemms_us = sum(us for us, *_ in parts)
    low_us, high_us = sum_interval(parts)
    if not low_us < gemms_us < high_us:  # none runs, or nothing is known of them
        ratio = exp(model.OF_DEFAULTS)
        return source, (latency_us / ratio, latency_us * ratio)
    return source, (latency_us * low_us / gemms_us, latency_us * high_us / gemms_us)


def _sizes(layers: list[MoeLayer]) -> dict[str, Rows]:
    """Return columns [num_layers] of what terms depend on; `inter` is that of one rank."""
    sizes = {
        name: np.array([getattr(layer, name) for layer in layers], np.int64)
        for name in (*_WORK_SIZES, *_SHARED_SIZES, "gated", "tp", "num_expert_groups")
    }
    sizes["inter"] //= sizes["tp"]
    return sizes


def works_of(runs: Runs) -> Iterator[tuple[str | None, Rows, MoeWork]]:
    """Yield the work besides the GEMMs of the runs of each kind: whose kernels, which runs, and what they do."""
    sizes = {name: values[runs.layer_of] for name, values in _sizes(runs.layers).items()}
    sizes["hidden"], sizes["inter"] = runs.padded[runs.layer_of].T
    columns = {name: runs.column(name) for name in ("num_active", "most_rows")} | {"local_rows": runs.column("rows")}
    columns |= {name: sizes[name] for name in _WORK_SIZES}
    columns["has_grouped_router"] = (sizes["num_expert_groups"] > 1).astype(np.int64)
    kinds = list(zip(runs.types, (layer.gated for layer in runs.layers), runs.libraries, strict=True))
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    number_of_run = np.array([numbers[kind] for kind in kinds])[runs.layer_of]
    for (types, gated, library), number in numbers.items():
        chosen = np.flatnonzero(number_of_run == number)
        of_kind = {name: values[chosen] for name, values in columns.items()}
        yield library, chosen, MoeWork(**of_kind, gated=gated, types=types)


def _other_terms(arch: ArchSpec, runs: Runs, works: Works, sizes: dict[str, Rows]) -> Floats:
    terms = np.zeros((len(runs.layer_of), len(BREAKDOWN)))
    for library, chosen, work in works:
        for name, times in layer_terms(arch, library, work).items():
            terms[chosen, BREAKDOWN.index(name)] = times
        tokens, width = (sizes[name][chosen] for name in ("shared_tokens", "shared_width"))
        if width.any():
            one = np.ones_like(tokens)
            as_expert = work._replace(  # one that every token takes, whose rows are quantized as those of the others
                num_tokens=tokens, inter=width, num_experts=one, num_local_experts=one, topk=one,
                local_rows=np.where(width > 0, tokens, 0), num_active=one, most_rows=tokens,
            )  # fmt: skip
            times_of = layer_terms(arch, library, as_expert)
            terms[chosen, _SHARED] = times_of["activation_us"] + times_of["quantize_us"]
    return terms


def mean_work(work: MoeWork, row_of: Rows, num_rows: int) -> MoeWork:
    """Return the means of the runs of each of `num_rows` rows; `row_of` is the row of each run of `work`."""
    num, zeros = np.maximum(np.bincount(row_of, minlength=num_rows), 1), np.zeros(len(row_of))
    means: dict[str, Any] = {
        name: np.bincount(row_of, zeros + column, minlength=num_rows) / num
        for name, column in work._asdict().items()
        if name != "types"
    }
    return MoeWork(**means, types=work.types)


def _means(column: Floats, first: Rows, num: Rows) -> Floats:
    return np.add.reduceat(column, first) / num


def _nearest_to_mean(latency_us: Floats, first: Rows, num: Rows) -> Rows:
    """Return the run that stands for each draw: of several ranks the one whose time is nearest to their mean."""
    nearest = first.copy()
    for draw in np.flatnonzero(num > 1):
        of_ranks = latency_us[first[draw] : first[draw] + num[draw]]
        nearest[draw] += int(np.argmin(np.abs(of_ranks - of_ranks.mean())))
    return nearest


def layer_terms(arch: ArchSpec, library: str | None, work: MoeWork) -> Mapping[str, npt.NDArray[np.float64]]:
    """Return the terms besides the GEMMs, in us, in the shape of the sizes of `work`.

    A rank without an assignment routes, because it must see that it has none; its other terms are 0. `library` says
    whose kernels run the GEMMs on a GPU; None: nothing runs there.
    """
    if isinstance(arch, MulticoreSpec):
        return multicore_layer_terms(arch, work)
    times = gpu_layer_terms(arch, coefficients_of(arch, library, work.types), work)
    is_busy = np.asarray(work.local_rows) > 0
    return {name: us if name == "routing_us" else us * is_busy for name, us in times.items()}


@lru_cache(maxsize=256)
def coefficients_of(arch: GpuSpec, library: str | None, types: GemmTypes) -> Mapping[str, float]:
    """Return the coefficients of the library's family, and those of a layer, with defaults where it has none."""
    defaults = {item.name: item.default for item in model.MOE_LAYER}
    if library is None:
        return defaults
    rules = model.library_of(library.partition("/")[0])
    try:
        family = rules.family(arch, types)
    except UnsupportedError:  # whose kernels of experts are not known to have a layer
        return defaults
    coefficients = model.coefficients_for(arch, rules.name, family)[0]
    return coefficients if "moe_fixed_us" in coefficients else defaults | coefficients


def moe_layer(
    evaluator: GEMMEvaluator | ArchSpec | str, num_tokens: int, hidden: int, inter: int, num_experts: int, topk: int, *,
    library: str | None = None, l2: str | None = None, clock: str | None = None, correction: bool | None = None,
    **of_layer: Any,
) -> MoeLayerResult:  # fmt: skip
    """Return what a layer of experts takes on one rank: routing, both grouped GEMMs, and what lies between them.

    >>> moe_layer("h200-sxm", 256, 7168, 2048, 256, 8, ep=8, dtype="fp8_block").breakdown    # doctest: +SKIP

    For each draw of the routing, the rank's experts have rows of their own: GEMM 1 is rows x hidden x (2*inter/tp), or
    inter/tp where not gated, GEMM 2 is rows x (inter/tp) x hidden, one launch each. The same draws come with the same
    seed on every machine. Communication between ranks and the router's GEMM are not in it.

    Args:
        evaluator: evaluates the GEMMs; or an arch, or its name or path.
        num_tokens, hidden, inter, num_experts, topk: see `MoeLayer`.
        library: GPUs: whose kernels run the experts: ``"triton"`` (SGLang's and vLLM's `fused_moe`), ``"marlin"`` (int4
            weights), ``"deepgemm"``, ``"trtllm-gen"``, ``"torch"`` or any other that runs the types; by default what
            serving engines take. Tiles are those of the library's own rules; one can be named, as in
            ``"triton/64x64x32"``.
        l2, clock, correction: GPUs: as for `GEMMEvaluator.evaluate`.
        of_layer: other fields of `MoeLayer`: tp, ep, distribution, rank, gated, num_shared_experts, shared_inter,
            dtype, num_draws, seed, num_expert_groups.

    Raises:
        InvalidInputError: `evaluator` is none.
        InvalidOptionError: see `MoeLayer`; or no such `library`, `l2` or `clock`.
        InvalidProblemError: no such data type, or GEMMs that are too large.
        UnsupportedError: the arch cannot run these types.
        InfeasibleError: no mapping fits.
    """
    layers = [MoeLayer(num_tokens, hidden, inter, num_experts, topk, **of_layer)]
    return moe_layers(evaluator, layers, library=library, l2=l2, clock=clock, correction=correction, progress=False)[0]


def moe_layers(
    evaluator: GEMMEvaluator | ArchSpec | str, layers: Any, *, library: str | None = None, l2: str | None = None,
    clock: str | None = None, correction: bool | None = None, errors: Literal["raise", "mark"] = "raise",
    progress: bool | None = None,
) -> MoeLayerTable:  # fmt: skip
    """Return what many layers of experts take: `moe_layer` for each, with the GEMMs of all in one batch.

    Args:
        evaluator: as for `moe_layer`.
        layers: an iterable of `MoeLayer` or of mappings with its fields, or a DataFrame with columns of these names.
        library, l2, clock, correction: as for `moe_layer`, for all layers.
        errors: ``"raise"`` an `UnsupportedError` or `InfeasibleError` for the first layer that the arch or the library
            cannot run, or ``"mark"`` its row: `MoeLayerTable.is_feasible` is False there.
        progress: as for `GEMMEvaluator.evaluate_many`.

    Raises:
        InvalidInputError, InvalidOptionError, InvalidProblemError, UnsupportedError, InfeasibleError: as `moe_layer`;
            what is wrong with a layer names its place.
    """
    check_word("errors", errors, ("raise", "mark"))
    if isinstance(evaluator, str | MulticoreSpec | GpuSpec):
        evaluator = GEMMEvaluator(evaluator)
    if not isinstance(evaluator, GEMMEvaluator):
        raise InvalidInputError(f"evaluator must be a GEMMEvaluator or an arch, got {shown(evaluator)}")
    read = _read_layers(layers)
    of_dtype = {layer.dtype: layer for layer in read}
    types_of_dtype = {dtype: types_of(layer, evaluator.arch) for dtype, layer in of_dtype.items()}
    options = run_options(library, l2, clock, None, correction)
    types = [types_of_dtype[layer.dtype] for layer in read]
    runs = make_runs(read, types, evaluator, options, marks_errors=errors == "mark")
    gemms = evaluator.evaluate_batch(runs.batch, errors=errors, progress=progress)
    is_corrected = (evaluator.preferred.correction if correction is None else correction) is not False
    draws = draw_columns(evaluator.arch, runs, gemms, is_corrected=is_corrected)
    return MoeLayerTable(evaluator.arch.name, read, draws, gemms, runs.errors)


def _read_layers(layers: Any) -> list[MoeLayer]:
    if hasattr(layers, "columns") and hasattr(layers, "to_dict"):
        names = [name for name in layers.columns if isinstance(name, str)]
        layers = [
            {name: _plain(row[name]) for name in names} for row in layers[names].astype(object).to_dict("records")
        ]
    if isinstance(layers, str | bytes | Mapping | MoeLayer) or not isinstance(layers, Iterable):
        raise InvalidOptionError(f"layers must be an iterable of MoeLayer, got {shown(layers)}; one is [layer]")
    read = []
    for place, item in enumerate(layers):
        if isinstance(item, MoeLayer):
            read.append(item)
            continue
        if not isinstance(item, Mapping):
            raise InvalidOptionError(f"layer {place} must be a MoeLayer or a mapping of its fields, got {shown(item)}")
        given = {name: value for name, value in item.items() if value is not None}
        if unknown := next((name for name in given if name not in LAYER_FIELDS), None):
            raise InvalidOptionError(f"layer {place}: {refusal('a field', unknown, LAYER_FIELDS)}")
        if missing := [name for name in LAYER_FIELDS[:5] if name not in given]:
            raise InvalidOptionError(f"layer {place}: {', '.join(missing)} missing")
        try:
            read.append(MoeLayer(**given))
        except InvalidOptionError as error:
            raise InvalidOptionError(f"layer {place}: {error}") from None
    if not read:
        raise InvalidOptionError("layers must be at least one layer, got none")
    return read


def _plain(value: Any) -> Any:
    """Return a cell of a DataFrame: None for gaps, whole floats as the ints that gaps made floats of."""
    if isinstance(value, float):
        return None if value != value else int(value) if value.is_integer() else value  # noqa: PLR0124  nan
    return value
