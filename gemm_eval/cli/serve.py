"""The command `serve`: which deployment of a model serves requests best, or what clients see of a given one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli import options as opt
from gemm_eval.cli.values import SEVERAL, parse_values
from gemm_eval.cli.words import refuse
from gemm_eval.errors import InvalidOptionError

if TYPE_CHECKING:
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.serving import Deployments, ServingEstimate

_REQUESTS, _DEVICES = "Requests", "Devices"
_MOST_LEFT_OUT = 6
_GPUS = (8, 16)
_US_PER_MS = 1e3
_DEFINITIONS = (
    "TTFT: from sending a request to its first token, with queueing. TPOT: the rest of its time over the tokens after "
    "the first (AIPerf: inter token latency). ITL: between two chunks of a stream (AIPerf: inter chunk latency). "
    "tok/s/user: 1 / TPOT. tok/s/GPU: output tokens of all requests."
)


def _counts(name: str, text: str) -> Any:
    return opt.option(f"{text} Default: all that divide. {SEVERAL}", f"--{name}", metavar="N,...", panel=_DEVICES)


def serve(
    ctx: typer.Context,
    *,
    model: opt.ModelArgument,
    arch: opt.ArchesOption,
    gpus: Annotated[str | None, opt.option(
        f"GPUs of the deployment. Default: 8,16; of a given layout those of one replica. {SEVERAL}", "--gpus",
        metavar="N,...", show_default=False, panel=_DEVICES
    )] = None,
    prompt_len: Annotated[int, opt.option("Tokens of a prompt.", "--isl", "--prompt", panel=_REQUESTS)] = 1024,
    output_len: Annotated[int, opt.option("Tokens of an answer.", "--osl", "--output", panel=_REQUESTS)] = 1024,
    ttft_ms: Annotated[
        float | None, opt.option("Largest mean TTFT, with queueing. Default: any.", "--ttft-ms", panel=_REQUESTS)
    ] = None,
    tpot_ms: Annotated[float | None, opt.option("Largest TPOT. Default: any.", "--tpot-ms", panel=_REQUESTS)] = None,
    concurrency: Annotated[str | None, opt.option(
        f"Requests in flight. Default: powers of two, up to what fits. {SEVERAL}", "--concurrency", metavar="N,...",
        show_default=False, panel=_REQUESTS
    )] = None,
    prefix_hit_frac: Annotated[float, opt.option(
        "Share of a prompt whose keys and values are in the cache already.", "--prefix-hit", panel=_REQUESTS
    )] = 0.0,
    speculative_tokens: Annotated[
        int, opt.option("Tokens guessed and verified in a step.", "--speculate", panel=_REQUESTS)
    ] = 0,
    acceptance: Annotated[float, opt.option("Share of guesses that hold.", panel=_REQUESTS)] = 0.7,
    has_fixed_lengths: Annotated[bool, opt.option(
        "All outputs are equally long, as in benchmarks without a range of lengths.", "--fixed-lengths",
        panel=_REQUESTS
    )] = False,
    engine: Annotated[list[str] | None, opt.option(
        "vllm, sglang, trtllm, ideal or a YAML file; repeat it to compare. Default: the "
        "engine with most timings on the arch.", metavar="NAME", show_default=False
    )] = None,
    tensor_parallel: Annotated[str | None, _counts("tp", "Tensor parallel degrees.")] = None,
    pipeline_parallel: Annotated[str | None, _counts("pp", "Pipeline parallel degrees.")] = None,
    expert_parallel: Annotated[str | None, _counts("ep", "Expert parallel degrees.")] = None,
    disaggregated: Annotated[bool, opt.option(
        "Also search separate pools of prefill and decode workers.", "--disagg/--no-disagg", panel=_DEVICES
    )] = True,
    dtype: Annotated[list[str] | None, opt.option(
        "Types of weights: bf16, fp8, ...; repeat it to compare. Default: from the model's file.",
        complete=opt.complete_schemes, show_default=False
    )] = None,
    kv_dtype: opt.KvDtypeOption = None,
    memory_frac: opt.MemoryFracOption = None,
    page: Annotated[Path | None, opt.option(
        "Also write an HTML page with the plot of the front to this file.", "--page", metavar="FILE"
    )] = None,
    run: opt.ModelRun,
    output: opt.Output,
) -> None:  # fmt: skip
    """Find the deployments of a model that serve most tokens a GPU within limits of latency, and their commands.

    All layouts of tensor, pipeline, expert and attention data parallelism, replicas, pools of prefill and decode
    workers, types and loads are estimated; the Pareto front of tok/s/GPU over tok/s/user is shown, best first, and
    the commands that start the best. With one --tp and one --concurrency it prints the
    latencies and rates of that layout.

    Examples:

    gemm-eval serve llama-3-70b --arch h200-sxm --gpus 8 --isl 4096 --osl 1024 --ttft-ms 1000 --tpot-ms 50

    gemm-eval serve deepseek-v3 --arch b200 --gpus 8,16 --isl 4096 --no-disagg --page serve.html

    gemm-eval serve llama-3-70b --arch h200-sxm --engine vllm --tp 4 --concurrency 64 --dtype fp8
    """  # fmt: skip
    from gemm_eval.serving import find_deployments

    counts = {
        name: None if text is None else parse_values(f"--{name}", text)
        for name, text in (
            ("tp", tensor_parallel), ("pp", pipeline_parallel), ("ep", expert_parallel), ("concurrency", concurrency),
            ("gpus", gpus),
        )
    }  # fmt: skip
    evaluators = [run.evaluator(name) for name in arch]
    dtypes: Sequence[str | None] = dtype or [None]
    common: dict[str, Any] = {
        "prompt_len": prompt_len, "output_len": output_len, "prefix_hit_frac": prefix_hit_frac,
        "speculative_tokens": speculative_tokens, "acceptance": acceptance, "has_fixed_lengths": has_fixed_lengths,
        "kv_dtype": kv_dtype, "memory_frac": memory_frac,
    }  # fmt: skip
    several = (evaluators, engine, dtypes, *counts.values())
    if counts["tp"] and counts["concurrency"] and all(len(values or [0]) == 1 for values in several):
        refuse(ctx, "one --tp with one --concurrency", {"ttft_ms", "tpot_ms", "page", "disaggregated"})
        given = {name: None if values is None else values[0] for name, values in counts.items()}
        more = {"engine": engine and engine[0], "dtype": dtypes[0]}
        estimate = _one(model, evaluators[0], given, common | more)
        output.give(lambda: [_row(estimate)], estimate.to_dict, lambda: _show_one(model, estimate))
        return
    limits: dict[str, Any] = {
        name: None if ms is None else ms * _US_PER_MS for name, ms in (("ttft_us", ttft_ms), ("tpot_us", tpot_ms))
    }
    result = find_deployments(
        model, evaluators, counts["gpus"] or _GPUS, **limits, **common, engines=engine, dtypes=dtypes,
        concurrencies=counts["concurrency"], disaggregated=disaggregated, tensor=counts["tp"], pipeline=counts["pp"],
        expert=counts["ep"],
    )  # fmt: skip
    commands = _commands(model, result.best)
    if page is not None:
        from gemm_eval.cli.output import print_line
        from gemm_eval.report import deployments_report

        print_line(f"wrote {deployments_report(result, commands).write(page)}", err=True)
    output.give(
        lambda: map(_row, result.front), lambda: result.to_dict() | {"commands": commands},
        lambda: _show(result, commands),
    )  # fmt: skip


def _one(
    model: str, evaluator: GEMMEvaluator, counts: dict[str, int | None], options: dict[str, Any]
) -> ServingEstimate:
    """Return the estimate of one layout, with as many replicas as fill the GPUs."""
    from gemm_eval.serving import estimate_serving

    tensor, pipeline, expert = (counts[name] or 1 for name in ("tp", "pp", "ep"))
    size = pipeline * max(tensor, expert)
    num_replicas, rest = divmod(counts["gpus"] or size, size)
    if rest or not num_replicas:
        raise InvalidOptionError(f"--gpus must be a multiple of the {size} GPUs of a replica, got {counts['gpus']}")
    return estimate_serving(
        model, evaluator, counts["concurrency"] or 1, num_replicas=num_replicas, tensor_parallel=tensor,
        pipeline_parallel=pipeline, expert_parallel=expert, **options,
    )  # fmt: skip


def _commands(model: str, estimate: ServingEstimate) -> tuple[str, ...]:
    from gemm_eval.serving import checkpoint_of, engine_commands
    from gemm_eval.transformer import load_model

    return engine_commands(estimate, model if Path(model).exists() else checkpoint_of(load_model(model)))


def _row(estimate: ServingEstimate) -> dict[str, Any]:
    """Return an estimate as a row: figures, and the degrees and types of the replicas that decode."""
    from gemm_eval.cli.output import flat
    from gemm_eval.serving import summary

    names = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "dtype", "kv_dtype")
    of_row = {name: value for name, value in summary(estimate).items() if name != "basis"}
    return flat(of_row) | {name: estimate.options[name] for name in names}


def _show_one(model: str, estimate: ServingEstimate) -> None:
    from gemm_eval.cli.output import make_console

    console = make_console()
    console.print(estimate.explain(), highlight=False)
    console.print(f"\n{_DEFINITIONS}", highlight=False)
    _print_commands(_commands(model, estimate))


def _show(result: Deployments, commands: tuple[str, ...]) -> None:
    from gemm_eval.cli.output import Column, format_number, make_console, print_table
    from gemm_eval.units import interval_text, time_text

    console = make_console()
    columns: list[Column] = [
        ("layout", "layout", ""), ("arch", "arch", ""), ("engine", "engine", ""), ("GPUs", "num_devices", ","),
        ("types", "dtype", lambda dtype: dtype or "checkpoint"), ("in flight", "concurrency", ","),
        ("tok/s/GPU", "tokens_per_s_per_device", ",.0f"), ("tok/s/user", "tokens_per_s_per_user", ",.0f"),
        ("TTFT", "ttft_us", time_text), ("p99", "ttft_p99_us", time_text), ("TPOT", "tpot_us", time_text),
        ("ITL p99", "itl_p99_us", time_text), ("requests/s", "requests_per_s", format_number),
        ("80% of TTFT within", "estimate", lambda r: interval_text(*r.ttft_interval_us)),
        ("80% of TPOT within", "estimate", lambda r: interval_text(*r.tpot_interval_us)),
    ]  # fmt: skip
    title = (
        f"{result.model_name}, {result.prompt_len:,} + {result.output_len:,} tokens: the Pareto front of "
        f"{result.num_points:,} deployments, {result.num_within:,} within the limits"
    )
    print_table([_row(estimate) | {"estimate": estimate} for estimate in result.front], columns, title=title)
    console.print(f"\n{_DEFINITIONS}", highlight=False)
    for reason, num in list(result.reasons().items())[:_MOST_LEFT_OUT]:
        first = next(item for item in result.left_out if item.reason == reason)
        others = f" and {num - 1} more" if num > 1 else ""
        console.print(f"left out: {first.layout}{others} on {first.arch_name}: {reason}", highlight=False)
    if len(result.reasons()) > _MOST_LEFT_OUT:
        console.print(f"{len(result.reasons()) - _MOST_LEFT_OUT} more reasons: see --json")
    if len(result.best_by_arch) > 1:
        bests = (f"{r.arch_name} {r.tokens_per_s_per_device:,.0f} ({r.layout})" for r in result.best_by_arch)
        console.print(f"best tok/s/GPU within the limits: {', '.join(bests)}", highlight=False)
    best = result.best
    console.print(f"{best.layout} on {best.arch_name}: {best.basis}", highlight=False)
    _print_commands(commands)


def _print_commands(commands: tuple[str, ...]) -> None:
    from gemm_eval.cli.output import print_line

    for text in commands:
        print_line("")
        for line in text.splitlines():
            print_line(line)
