"""`moe_layer` and `moe_layers`: the time of layers of experts, all their grouped GEMMs in one batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec
from gemm_eval.checks import check_word
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.moe.layer import LAYER_FIELDS, MoeLayer, types_of
from gemm_eval.moe.runs import draw_columns, make_runs
from gemm_eval.moe.table import MoeLayerResult, MoeLayerTable
from gemm_eval.words import refusal, shown
from gemm_eval.workload import run_options


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
    layer = MoeLayer(num_tokens, hidden, inter, num_experts, topk, **of_layer)
    result: MoeLayerResult = moe_layers(
        evaluator, [layer], library=library, l2=l2, clock=clock, correction=correction, progress=False
    )[0]
    return result


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
    return MoeLayerTable(evaluator.arch.name, read, draw_columns(evaluator.arch, runs, gemms), gemms, runs.errors)


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
