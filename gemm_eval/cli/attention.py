"""The command `attention`: what the attention of one layer takes, term by term."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any

import typer

from gemm_eval.cli.completion import complete_types
from gemm_eval.cli.options import ArchesOption, JsonOption, integer
from gemm_eval.cli.ranges import SEVERAL, check_count, is_several, parse_values
from gemm_eval.cli.tables import OutOption, check_out, flat, write_records

__all__ = ["attention"]

_HEADS_PANEL, _KIND_PANEL = "Heads", "Kind"


def _size(name: str, text: str, *, panel: str | None = None) -> Any:
    return typer.Option(f"--{name}", help=text, parser=integer, metavar="SIZE", rich_help_panel=panel)


def _sizes(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", help=f"{text} {SEVERAL}", metavar="SIZE,...")


def attention(
    arch: ArchesOption,
    kv_len: Annotated[str, _sizes("kv", "Keys of each sequence: cached ones and new ones.")],
    num_heads: Annotated[int, _size("heads", "Query heads.", panel=_HEADS_PANEL)],
    q_len: Annotated[str, _sizes("q", "Queries of each sequence: the last positions; 1 is a step of decode.")] = "1",
    batch: Annotated[str, _sizes("batch", "Sequences.")] = "1",
    num_kv_heads: Annotated[
        int | None,
        _size("kv-heads", "KV heads, which groups of query heads share. Default: as many.", panel=_HEADS_PANEL),
    ] = None,
    head_dim: Annotated[int, _size("head-dim", "Elements of a query and of a key.", panel=_HEADS_PANEL)] = 128,
    v_head_dim: Annotated[
        int | None, _size("v-head-dim", "Elements of a value. Default: as of a key.", panel=_HEADS_PANEL)
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Of queries, and what is computed in. Default: the arch's.",
            metavar="TYPE",
            autocompletion=complete_types,
        ),
    ] = None,
    kv_dtype: Annotated[
        str | None,
        typer.Option(
            "--kv-dtype",
            help="Of keys and values in the cache. Default: --dtype.",
            metavar="TYPE",
            autocompletion=complete_types,
        ),
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
            help="Whose fused kernels of GPUs: trtllm (with positions and the write of the cache), cudnn, flash, or "
            "flashinfer (one query over latents). Default: trtllm.",
            metavar="WORD",
            rich_help_panel=_KIND_PANEL,
            show_default=False,
        ),
    ] = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Say what the attention of one layer takes: scores, softmax and values of all heads of one device.

    Several batches or lengths have a row each.

    Examples:

    gemm-eval attention --arch h200-sxm --batch 16 --kv 8192 --heads 32 --kv-heads 8 --dtype bf16 --kv-dtype fp8

    gemm-eval attention --arch ascend-910 --q 8192 --kv 8192 --heads 32 --kv-heads 8 --dtype fp16

    gemm-eval attention --arch b200 --arch h200-sxm --batch 1..64 --kv 4096,32768 --heads 64 --kv-heads 8 --dtype bf16

    gemm-eval attention --arch h200-sxm --kv 8192 --heads 128 --kv-heads 1 --head-dim 576 --v-head-dim 512 --latent
    """  # fmt: skip
    from gemm_eval.evaluate import GEMMEvaluator

    check_out(out)
    batches, q_lens, kv_lens = (
        parse_values(name, text) if is_several(text) else [integer(text)]
        for name, text in (("--batch", batch), ("--q", q_len), ("--kv", kv_len))
    )
    num = len(batches) * len(q_lens) * len(kv_lens)
    check_count(num * len(arch), "--arch, --batch, --q and --kv")
    evaluators = [GEMMEvaluator(name) for name in arch]
    results = [
        evaluator.evaluate_attention(
            batch=size, q_len=queries, kv_len=keys, num_heads=num_heads,
            num_kv_heads=1 if latent and num_kv_heads is None else num_kv_heads, head_dim=head_dim, dtype=dtype,
            kv_dtype=kv_dtype, v_head_dim=v_head_dim, causal=causal, window=window, is_latent=latent, fused=fused,
            library=library,
        )
        for size, queries, keys in product(batches, q_lens, kv_lens)
        for evaluator in evaluators
    ]  # fmt: skip
    if out is not None:
        write_records(out, [flat(one.to_dict(), "problem", "breakdown", "mapping") for one in results], json=json)
        return
    if json:
        from gemm_eval.cli.output import print_json

        plain = [result.to_dict() for result in results]
        print_json(plain[0] if len(plain) == 1 else plain)
        return
    if num > 1:
        from gemm_eval.cli.render_attention import print_attentions

        print_attentions(results)
        return
    from gemm_eval.cli.output import make_console

    console = make_console()
    for place, result in enumerate(results):
        console.print(("\n" if place else "") + result.explain(), highlight=False)
