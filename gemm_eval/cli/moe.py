"""The command `moe`: what a layer of experts takes, term by term, for several numbers of tokens."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gemm_eval.cli.completion import complete_models
from gemm_eval.cli.options import (
    ArchOption,
    ClockOption,
    CorrectionOption,
    DtypeOption,
    JsonOption,
    L2Option,
    ModelLibraryOption,
    integer,
)
from gemm_eval.cli.ranges import SEVERAL, parse_values
from gemm_eval.cli.tables import OutOption, check_out, write_records
from gemm_eval.errors import InvalidOptionError

__all__ = ["moe"]

_SIZES_PANEL, _RANKS_PANEL, _ROUTING_PANEL = "Sizes of the layer", "Ranks", "Routing"


def _size(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", help=text, parser=integer, rich_help_panel=_SIZES_PANEL)


def _degree(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", help=text, rich_help_panel=_RANKS_PANEL)


def moe(
    arch: ArchOption,
    tokens: Annotated[
        str,
        typer.Option(
            help=f"Tokens that all ranks of an expert-parallel group see together. {SEVERAL}",
            metavar="N,...",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="Take sizes from a model: a preset, or a config.json. Options given beside it win.",
            metavar="NAME|FILE",
            rich_help_panel=_SIZES_PANEL,
            autocompletion=complete_models,
        ),
    ] = None,
    hidden: Annotated[int | None, _size("hidden", "Width of the model.")] = None,
    inter: Annotated[int | None, _size("inter", "Intermediate width of an expert.")] = None,
    num_experts: Annotated[int | None, _size("experts", "Routed experts of the layer.")] = None,
    topk: Annotated[int | None, _size("topk", "Experts of a token.")] = None,
    num_shared_experts: Annotated[
        int | None, _size("shared", "Shared experts, which every token takes. Default: 0, or those of the model.")
    ] = None,
    shared_inter: Annotated[
        int | None, _size("shared-inter", "Intermediate width of a shared expert. Default: as the others.")
    ] = None,
    gated: Annotated[
        bool | None,
        typer.Option(
            "--gated/--no-gate",
            help="Gate and up projection, or up alone. Default: gated, or as the model has it.",
            show_default=False,
            rich_help_panel=_SIZES_PANEL,
        ),
    ] = None,
    tp: Annotated[int, _degree("tp", "Tensor parallel degree: ranks that share an expert.")] = 1,
    ep: Annotated[int, _degree("ep", "Expert parallel degree: ranks that share the experts.")] = 1,
    rank: Annotated[
        str,
        typer.Option(
            help="Whose time: most_loaded, mean, or the number of a rank.",
            metavar="WORD|N",
            rich_help_panel=_RANKS_PANEL,
        ),
    ] = "most_loaded",
    distribution: Annotated[
        str,
        typer.Option(
            help="Tokens over experts: balanced, uniform, power_law_ALPHA, weights:W,W,... or counts:N,N,... (one for "
            "each expert).",
            metavar="WORD",
            rich_help_panel=_ROUTING_PANEL,
        ),
    ] = "balanced",
    num_draws: Annotated[
        int, typer.Option("--draws", help="How often random routing is drawn.", rich_help_panel=_ROUTING_PANEL)
    ] = 5,
    seed: Annotated[int, typer.Option(help="Of the draws.", rich_help_panel=_ROUTING_PANEL)] = 0,
    dtype: DtypeOption = None,
    library: ModelLibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    correction: CorrectionOption = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a layer of experts takes on one rank: routing, both grouped GEMMs, and what lies between.

    Times are means over draws of the routing; communication between ranks and the router's GEMM are not in them.

    Examples:

    gemm-eval moe --arch h200-sxm --tokens 64..1024 --model deepseek-v3 --ep 8 --dtype fp8_block

    gemm-eval moe --arch b200 --tokens 512 --hidden 4096 --inter 1536 --experts 128 --topk 8 --distribution uniform
    """
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.moe import MoeLayer, moe_layers
    from gemm_eval.transformer import load_model, moe_layer_of

    check_out(out)
    sizes: dict[str, Any] = {
        "hidden": hidden, "inter": inter, "num_experts": num_experts, "topk": topk,
        "num_shared_experts": num_shared_experts, "shared_inter": shared_inter, "gated": gated,
    }  # fmt: skip
    given = {name: value for name, value in sizes.items() if value is not None}
    options: dict[str, Any] = {
        "tp": tp, "ep": ep, "rank": integer(rank), "distribution": distribution, "num_draws": num_draws, "seed": seed,
        "dtype": dtype,
    }  # fmt: skip
    if model is None and (missing := [f"--{word}" for name, word in _NEEDED.items() if name not in given]):
        raise InvalidOptionError(f"give {', '.join(missing)}, or --model, whose sizes are taken")
    config = None if model is None else load_model(model)
    evaluator = GEMMEvaluator(arch)
    layers = [
        MoeLayer(num, **given, **options) if config is None else moe_layer_of(config, num, **given, **options)
        for num in parse_values("--tokens", tokens)
    ]
    table = moe_layers(evaluator, layers, library=library, l2=l2, clock=clock, correction=correction, progress=False)
    head = {"arch": evaluator.arch.name, "model": None if config is None else config.name}
    if out is not None:
        write_records(out, [head | row for row in table.to_dicts()], json=json)
    elif json:
        from gemm_eval.cli.output import print_json

        print_json(head | {"layers": [result.to_dict() for result in table]})
    else:
        from gemm_eval.cli.render_moe import print_layers

        print_layers(table, evaluator.arch, None if config is None else config.name)


_NEEDED = {"hidden": "hidden", "inter": "inter", "num_experts": "experts", "topk": "topk"}
