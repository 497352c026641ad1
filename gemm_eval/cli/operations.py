"""The commands on one layer of a model: `attention`, `moe`, and `collective`, between GPUs."""

import re
from itertools import product
from typing import Annotated, Any

import gemm_eval
from gemm_eval.cli import options as opt
from gemm_eval.cli.values import SEVERAL, check_count, integer, is_several, parse_values
from gemm_eval.errors import InvalidOptionError
from gemm_eval.units import UNITS

_HEADS, _KIND = "Heads", "Kind"
_SIZES, _RANKS, _ROUTING = "Sizes of the layer", "Ranks", "Routing"
_UNITS = {unit.lower(): num for unit, num in UNITS["bytes"].items()} | {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_NEEDED = {"hidden": "hidden", "inter": "inter", "num_experts": "experts", "topk": "topk"}
"""Sizes without which there is no layer of experts, and their options."""


def _size(name: str, text: str, panel: str | None = None) -> Any:
    return opt.option(text, f"--{name}", parser=integer, metavar="SIZE", panel=panel)


def _sizes(name: str, text: str) -> Any:
    return opt.option(f"{text} {SEVERAL}", f"--{name}", metavar="SIZE,...")


def _of_layer(name: str, text: str) -> Any:
    return opt.option(text, f"--{name}", parser=integer, panel=_SIZES)


def attention(
    *,
    arch: opt.ArchesOption,
    kv_len: Annotated[str, _sizes("kv", "Keys of each sequence: cached ones and new ones.")],
    num_heads: Annotated[int, _size("heads", "Query heads.", _HEADS)],
    q_len: Annotated[str, _sizes("q", "Queries of each sequence: the last positions; 1 is a step of decode.")] = "1",
    batch: Annotated[str, _sizes("batch", "Sequences.")] = "1",
    num_kv_heads: Annotated[
        int | None, _size("kv-heads", "KV heads, which groups of query heads share. Default: as many.", _HEADS)
    ] = None,
    head_dim: Annotated[int, _size("head-dim", "Elements of a query and of a key.", _HEADS)] = 128,
    v_head_dim: Annotated[int | None, _size("v-head-dim", "Elements of a value. Default: as of a key.", _HEADS)] = None,
    dtype: Annotated[
        str | None,
        opt.option(
            "Type of queries and of products. Default: the arch's.", metavar="TYPE", complete=opt.complete_types
        ),
    ] = None,
    kv_dtype: Annotated[str | None, opt.option(
        "Type of the cache. Default: --dtype.", "--kv-dtype", metavar="TYPE", complete=opt.complete_types
    )] = None,
    window: Annotated[
        int | None, _size("window", "Positions that a query attends to at most. Default: all.", _KIND)
    ] = None,
    causal: Annotated[
        bool, opt.option("Attend to positions up to the query's, or to all.", "--causal/--full", panel=_KIND)
    ] = True,
    latent: Annotated[
        bool, opt.option("MLA, absorbed: values are elements of the keys, of one KV head.", "--latent", panel=_KIND)
    ] = False,
    backward: Annotated[
        bool, opt.option("Predict the gradients of queries, keys and values.", "--backward", panel=_KIND)
    ] = False,
    fused: Annotated[bool | None, opt.option(
        "Keep scores on the chip, or run two GEMMs with a softmax between them. Default: fused where it can be.",
        "--fused/--unfused", panel=_KIND
    )] = None,
    library: Annotated[str | None, opt.option(
        "Library of fused GPU kernels: trtllm (with positions and the write of the cache), cudnn, flash, or "
        "flashinfer (one query over latents). Default: trtllm.", metavar="WORD", panel=_KIND
    )] = None,
    output: opt.Output,
) -> None:  # fmt: skip
    """Predict the time of one layer's attention: scores, softmax and values of all heads of one device.

    Several batches or lengths have a row each.

    Examples:

    gemm-eval attention --arch h200-sxm --batch 16 --kv 8192 --heads 32 --kv-heads 8 --dtype bf16 --kv-dtype fp8

    gemm-eval attention --arch ascend-910 --q 8192 --kv 8192 --heads 32 --kv-heads 8 --dtype fp16

    gemm-eval attention --arch b200 --arch h200-sxm --batch 1..64 --kv 4096,32768 --heads 64 --kv-heads 8 --dtype bf16

    gemm-eval attention --arch h200-sxm --kv 8192 --heads 128 --kv-heads 1 --head-dim 576 --v-head-dim 512 --latent

    gemm-eval attention --arch h200-sxm --batch 4 --q 4096 --kv 4096 --heads 32 --kv-heads 8 --backward
    """  # fmt: skip
    from gemm_eval.cli.output import flat
    from gemm_eval.cli.render_model import print_attentions

    batches, q_lens, kv_lens = (
        parse_values(name, text) if is_several(text) else [integer(text)]
        for name, text in (("--batch", batch), ("--q", q_len), ("--kv", kv_len))
    )
    check_count(len(batches) * len(q_lens) * len(kv_lens) * len(arch), "--arch, --batch, --q and --kv")
    evaluators = [gemm_eval.GEMMEvaluator(name) for name in arch]
    results = [
        evaluator.evaluate_attention(
            batch=size, q_len=queries, kv_len=keys, num_heads=num_heads,
            num_kv_heads=1 if latent and num_kv_heads is None else num_kv_heads, head_dim=head_dim, dtype=dtype,
            kv_dtype=kv_dtype, v_head_dim=v_head_dim, causal=causal, window=window, is_latent=latent,
            backward=backward, fused=fused, library=library,
        )
        for size, queries, keys in product(batches, q_lens, kv_lens)
        for evaluator in evaluators
    ]  # fmt: skip
    output.give(
        lambda: [flat(result.to_dict(), "problem", "breakdown", "mapping") for result in results],
        lambda: opt.one_or_all([result.to_dict() for result in results]),
        lambda: print_attentions(results, num_archs=len(arch)),
    )


def collective(
    *,
    arch: opt.ArchOption,
    operation: Annotated[
        str, opt.argument("all_reduce, all_gather, reduce_scatter, all_to_all or send.", "OPERATION")
    ],
    sizes: Annotated[str, opt.argument(
        "Bytes that one device adds, contributes or sends in all: 1MiB. Several: 64KiB,1MiB or a "
        "range, 1KiB..64MiB (doubled) or 1MiB..8MiB:1MiB (in steps).", "SIZE,..."
    )],
    ranks: Annotated[str, opt.option(f"GPUs that take part. {SEVERAL}", metavar="N,...")] = "8",
    nodes: Annotated[int | None, opt.option(
        "Nodes, with equally many GPUs in each. Default: the fewest that hold them.", parser=integer
    )] = None,
    dtype: Annotated[
        str | None,
        opt.option(
            "Type of the elements; a switch does not add up narrow ones.", metavar="TYPE",
            complete=opt.complete_types,
        ),
    ] = None,
    library: Annotated[str | None, opt.option(
        "trtllm: TensorRT-LLM's kernels for all-reduces over NVLink, else NCCL; or nccl. Default: trtllm.",
        metavar="NAME"
    )] = None,
    interconnect: opt.InterconnectOption = None,
    output: opt.Output,
) -> None:  # fmt: skip
    """Predict algorithm, latency and bandwidth of a collective between GPUs, in one node or several.

    Bus GB/s: bytes that a GPU must send, over the time. KiB, MiB, GiB are powers of 1024, KB, MB, GB of 1000.

    Between nodes, rates and latencies are those of the arch's network: nothing was timed there.

    Examples:

    gemm-eval collective --arch h200-sxm all_reduce 1MiB --ranks 8

    gemm-eval collective --arch b200 all_gather 4KiB..256MiB --ranks 2,4,8 --library nccl

    gemm-eval collective --arch h200-sxm all_reduce 256MiB --ranks 8,16,32 --nodes 4
    """
    from gemm_eval.cli.output import flat
    from gemm_eval.cli.render_model import print_collectives

    evaluator = gemm_eval.GEMMEvaluator(arch)
    nums, num_bytes = parse_values("--ranks", ranks), sizes_of(sizes)
    check_count(len(nums) * len(num_bytes), "SIZE and --ranks")
    if nodes is not None and (uneven := [num for num in nums if nodes < 1 or num % nodes]):
        raise InvalidOptionError(f"--nodes must divide --ranks, got {nodes} nodes of {uneven[0]} ranks")
    results = [
        evaluator.evaluate_collective(
            operation,
            size,
            num,
            dtype=dtype,
            library=library,
            interconnect=interconnect,
            ranks_per_node=None if nodes is None else num // nodes,
        )
        for num in nums
        for size in num_bytes
    ]
    output.give(
        lambda: [flat(result.to_dict(), "problem", "breakdown") for result in results],
        lambda: opt.one_or_all([result.to_dict() for result in results]),
        lambda: print_collectives(results),
    )


def sizes_of(text: str) -> list[int]:
    """Return the sizes that a word spells, in bytes: numbers, units and ranges as `parse_values` reads them."""
    return parse_values("sizes", text, read=_num_bytes, form="bytes such as 4096, 64KiB,1MiB or 1KiB..1MiB")


def _num_bytes(word: str) -> int | None:
    match = _BYTES.fullmatch(word.strip().lower())
    if match is None or match[2] not in _UNITS:
        return None
    return round(float(match[1]) * _UNITS[match[2]]) or None


def moe(
    *,
    arch: opt.ArchOption,
    tokens: Annotated[
        str,
        opt.option(f"Tokens that all ranks of an expert-parallel group see together. {SEVERAL}", metavar="N,..."),
    ],
    model: Annotated[str | None, opt.option(
        "Take sizes from a model: a preset, or a config.json. Options given beside it win.",
        metavar="NAME|FILE", panel=_SIZES, complete=opt.complete_models
    )] = None,
    hidden: Annotated[int | None, _of_layer("hidden", "Width of the model.")] = None,
    inter: Annotated[int | None, _of_layer("inter", "Intermediate width of an expert.")] = None,
    num_experts: Annotated[int | None, _of_layer("experts", "Routed experts of the layer.")] = None,
    topk: Annotated[int | None, _of_layer("topk", "Experts of a token.")] = None,
    num_shared_experts: Annotated[
        int | None, _of_layer("shared", "Shared experts, which every token takes. Default: 0, or those of the model.")
    ] = None,
    shared_inter: Annotated[
        int | None, _of_layer("shared-inter", "Intermediate width of a shared expert. Default: as the others.")
    ] = None,
    gated: Annotated[bool | None, opt.option(
        "Gate and up projection, or up alone. Default: gated, or from the model.",
        "--gated/--no-gate", panel=_SIZES
    )] = None,
    tp: Annotated[int, opt.option("Tensor parallel degree: ranks that share an expert.", "--tp", panel=_RANKS)] = 1,
    ep: Annotated[int, opt.option("Expert parallel degree: ranks that share the experts.", "--ep", panel=_RANKS)] = 1,
    rank: Annotated[
        str, opt.option("Rank to predict: most_loaded, mean, or the number of a rank.", metavar="WORD|N", panel=_RANKS)
    ] = "most_loaded",
    distribution: Annotated[str, opt.option(
        "Tokens over experts: balanced, uniform, power_law_ALPHA, weights:W,W,... or counts:N,N,... (one for "
        "each expert).", metavar="WORD", panel=_ROUTING
    )] = "balanced",
    num_draws: Annotated[int, opt.option("Number of draws of random routing.", "--draws", panel=_ROUTING)] = 5,
    seed: Annotated[int, opt.option("Seed of the draws.", panel=_ROUTING)] = 0,
    dtype: opt.DtypeOption = None,
    run: opt.ModelRun,
    output: opt.Output,
) -> None:  # fmt: skip
    """Predict the time of a layer of experts on one rank: routing, both grouped GEMMs, and the kernels between.

    Times are means over draws of the routing; communication between ranks and the router's GEMM are not in them.

    Examples:

    gemm-eval moe --arch h200-sxm --tokens 64..1024 --model deepseek-v3 --ep 8 --dtype fp8_block

    gemm-eval moe --arch b200 --tokens 512 --hidden 4096 --inter 1536 --experts 128 --topk 8 --distribution uniform
    """
    from gemm_eval.cli.render_model import print_layers
    from gemm_eval.transformer import load_model, moe_layer_of

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
    evaluator = gemm_eval.GEMMEvaluator(arch)
    layers = [
        gemm_eval.MoeLayer(num, **given, **options) if config is None else moe_layer_of(config, num, **given, **options)
        for num in parse_values("--tokens", tokens)
    ]
    table = gemm_eval.moe_layers(evaluator, layers, progress=False, **vars(run))
    head = {"arch": evaluator.arch.name, "model": None if config is None else config.name}
    output.give(
        lambda: [head | row for row in table.to_dicts()],
        lambda: head | {"layers": [result.to_dict() for result in table]},
        lambda: print_layers(table, evaluator.arch, head["model"]),
    )
