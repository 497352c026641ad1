"""The command `attention`: what the attention of one layer takes, term by term."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gemm_eval.cli.options import ArchesOption, JsonOption, integer

__all__ = ["attention"]

_HEADS_PANEL, _KIND_PANEL = "Heads", "Kind"


def _size(name: str, text: str, *, panel: str | None = None) -> Any:
    return typer.Option(f"--{name}", help=text, parser=integer, metavar="SIZE", rich_help_panel=panel)


def attention(
    arch: ArchesOption,
    kv_len: Annotated[int, _size("kv", "Keys of each sequence: cached ones and new ones.")],
    num_heads: Annotated[int, _size("heads", "Query heads.", panel=_HEADS_PANEL)],
    q_len: Annotated[int, _size("q", "Queries of each sequence: the last positions; 1 is a step of decode.")] = 1,
    batch: Annotated[int, _size("batch", "Sequences.")] = 1,
    num_kv_heads: Annotated[
        int | None,
        _size("kv-heads", "KV heads, which groups of query heads share. Default: as many.", panel=_HEADS_PANEL),
    ] = None,
    head_dim: Annotated[int, _size("head-dim", "Elements of a query and of a key.", panel=_HEADS_PANEL)] = 128,
    v_head_dim: Annotated[
        int | None, _size("v-head-dim", "Elements of a value. Default: as of a key.", panel=_HEADS_PANEL)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of queries, and what is computed in. Default: the arch's.", metavar="TYPE")
    ] = None,
    kv_dtype: Annotated[
        str | None,
        typer.Option("--kv-dtype", help="Of keys and values in the cache. Default: --dtype.", metavar="TYPE"),
    ] = None,
    window: Annotated[
        int | None, _size("window", "Positions that a query attends to at most. Default: all.", panel=_KIND_PANEL)
    ] = None,
    causal: Annotated[
        bool,
        typer.Option(
            "--causal/--full", help="To positions up to the query's own, or to all.", rich_help_panel=_KIND_PANEL
        ),
    ] = True,
    latent: Annotated[
        bool,
        typer.Option(
            "--latent",
            help="MLA, absorbed: values are elements of the keys, of one KV head.",
            rich_help_panel=_KIND_PANEL,
        ),
    ] = False,
    fused: Annotated[
        bool | None,
        typer.Option(
            "--fused/--unfused",
            help="Scores stay on the chip, or two GEMMs with a softmax between them. Default: fused where it can be.",
            show_default=False,
            rich_help_panel=_KIND_PANEL,
        ),
    ] = None,
    library: Annotated[
        str | None,
        typer.Option(
            help="Whose fused kernels of GPUs: trtllm (with positions and the write of the cache), cudnn or flash. "
            "Default: trtllm.",
            metavar="WORD",
            rich_help_panel=_KIND_PANEL,
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say what the attention of one layer takes: scores, softmax and values of all heads of one device.

    Examples:

    gemm-eval attention --arch h200-sxm --batch 16 --kv 8192 --heads 32 --kv-heads 8 --dtype bf16 --kv-dtype fp8

    gemm-eval attention --arch ascend-910 --q 8192 --kv 8192 --heads 32 --kv-heads 8 --dtype fp16

    gemm-eval attention --arch b200 --q 8192 --kv 8192 --heads 64 --kv-heads 8 --dtype bf16

    gemm-eval attention --arch h200-sxm --kv 8192 --heads 128 --kv-heads 1 --head-dim 576 --v-head-dim 512 --latent
    """  # fmt: skip
    from gemm_eval.evaluate import GEMMEvaluator

    results = [
        GEMMEvaluator(name).evaluate_attention(
            batch=batch, q_len=q_len, kv_len=kv_len, num_heads=num_heads,
            num_kv_heads=1 if latent and num_kv_heads is None else num_kv_heads, head_dim=head_dim, dtype=dtype,
            kv_dtype=kv_dtype, v_head_dim=v_head_dim, causal=causal, window=window, is_latent=latent, fused=fused,
            library=library,
        )
        for name in arch
    ]  # fmt: skip
    if json:
        from gemm_eval.cli.output import print_json

        plain = [result.to_dict() for result in results]
        print_json(plain[0] if len(plain) == 1 else plain)
        return
    from gemm_eval.cli.output import make_console

    console = make_console()
    for place, result in enumerate(results):
        console.print(("\n" if place else "") + result.explain(), highlight=False)
