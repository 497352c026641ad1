"""The command `model`: how soon, how fast, and whether it fits, for one or several chips, batches and prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli.model import (
    MEMORY_FRAC,
    DenseDtypeOption,
    DtypeOption,
    ExpertDtypeOption,
    ExpertLoadOption,
    IgnoreMemoryOption,
    KvDtypeOption,
    MemoryFracOption,
    MemoryOption,
    ModelArgument,
)
from gemm_eval.cli.options import (
    ArchesOption,
    ClockOption,
    CorrectionOption,
    InterconnectOption,
    JsonOption,
    L2Option,
    ModelLibraryOption,
)
from gemm_eval.cli.ranges import SEVERAL, check_count, parse_values
from gemm_eval.cli.tables import OutOption, check_out, write_records
from gemm_eval.cli.words import refuse

if TYPE_CHECKING:
    from gemm_eval.estimate import ModelEstimate

__all__ = ["model"]

_REQUEST_PANEL, _DEVICES_PANEL, _KERNELS_PANEL = "Requests", "Devices", "Kernels"


def _list(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", help=f"{text} {SEVERAL}", metavar="N,...", rich_help_panel=_REQUEST_PANEL)


def _degree(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", help=text, rich_help_panel=_DEVICES_PANEL)


def model(
    ctx: typer.Context,
    model: ModelArgument,
    arch: ArchesOption,
    batch: Annotated[str, _list("batch", "Sequences that are decoded together.")] = "1",
    prompt_len: Annotated[str, _list("prompt", "Tokens of a prompt.")] = "1024",
    output_len: Annotated[
        int, typer.Option("--output", help="Tokens of an answer.", rich_help_panel=_REQUEST_PANEL)
    ] = 256,
    chunk_tokens: Annotated[
        int | None,
        typer.Option(
            "--chunk",
            help="Tokens of a prompt in one step, at most. Default: 8192.",
            show_default=False,
            rich_help_panel=_REQUEST_PANEL,
        ),
    ] = None,
    speculative_tokens: Annotated[
        int, typer.Option("--speculate", help="Tokens guessed and verified in a step.", rich_help_panel=_REQUEST_PANEL)
    ] = 0,
    acceptance: Annotated[
        float, typer.Option(help="Share of guesses that hold.", rich_help_panel=_REQUEST_PANEL)
    ] = 0.7,
    tensor_parallel: Annotated[int, _degree("tp", "Tensor parallel degree.")] = 1,
    pipeline_parallel: Annotated[int, _degree("pp", "Pipeline parallel degree.")] = 1,
    expert_parallel: Annotated[int, _degree("ep", "Expert parallel degree; of models with experts.")] = 1,
    dtype: DtypeOption = None,
    dense_dtype: DenseDtypeOption = None,
    expert_dtype: ExpertDtypeOption = None,
    expert_load: ExpertLoadOption = "uniform",
    kv_dtype: KvDtypeOption = None,
    fused: Annotated[
        bool | None,
        typer.Option(
            "--fused/--unfused",
            help="Attention. Default: fused where it can be.",
            show_default=False,
            rich_help_panel=_KERNELS_PANEL,
        ),
    ] = None,
    separate_quantization: Annotated[
        bool,
        typer.Option(
            "--separate-quantization",
            help="Quantize activations by a kernel of its own before each fp8, fp4 or int8 GEMM. Default, as engines "
            "do: in the norm or activation before, and in attention where one static scale holds (fp8).",
            rich_help_panel=_KERNELS_PANEL,
        ),
    ] = False,
    interconnect: InterconnectOption = None,
    library: ModelLibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    correction: CorrectionOption = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="Also what each operation of both steps takes.")
    ] = False,
    show_memory: MemoryOption = False,
    memory_frac: MemoryFracOption = MEMORY_FRAC,
    ignore_memory: IgnoreMemoryOption = False,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Say what a model does on an arch: time to first token, time per token, tokens a second, memory.

    A step is the sum of its operations: GEMMs, fused attention, experts, messages between devices, and what is bound by
    memory. The chunks of a prompt follow each other through the pipeline stages. The host and the network to clients
    are not in it. A model that does not fit is refused, with what would
    help; several batches or prompts show which do.

    Examples:

    gemm-eval model llama-3-8b --arch h200-sxm --batch 1,16,64 --prompt 4096 --operations

    gemm-eval model llama-3-70b --arch h200-sxm --arch b200 --tp 4 --batch 64 --dtype fp8

    gemm-eval model deepseek-v3 --arch b200 --tp 8 --ep 8 --batch 1..256 --prompt 4096 --out served.csv
    """  # fmt: skip
    from gemm_eval.cli.render_estimate import print_estimates
    from gemm_eval.estimate import estimate_models
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.transformer import Fusions

    check_out(out)
    if out is not None:
        refuse(ctx, "--out", {"operations", "show_memory"})
    batches, prompts = parse_values("--batch", batch), parse_values("--prompt", prompt_len)
    is_one = len(arch) * len(batches) * len(prompts) == 1
    check_count(len(arch) * len(batches) * len(prompts), "--arch, --batch and --prompt")
    options: dict[str, Any] = {
        "output_len": output_len, "tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel,
        "expert_parallel": expert_parallel, "dtype": dtype, "dense_dtype": dense_dtype, "expert_dtype": expert_dtype,
        "kv_dtype": kv_dtype, "speculative_tokens": speculative_tokens, "acceptance": acceptance,
        "expert_load": expert_load, "fused": fused, "memory_frac": memory_frac,
        "ignore_memory": ignore_memory or not is_one, "fusions": Fusions(quantization=not separate_quantization),
        "interconnect": interconnect,
    }  # fmt: skip
    if chunk_tokens is not None:
        options["chunk_tokens"] = chunk_tokens
    evaluators = [GEMMEvaluator(name, library=library, l2=l2, clock=clock, correction=correction) for name in arch]
    found = list(estimate_models([model], evaluators, batches, prompts, **options))
    if out is not None:
        write_records(out, list(map(_row, found)), json=json)
        return
    if json:
        from gemm_eval.cli.output import print_json

        plain = [estimate.to_dict() for estimate in found]
        print_json(plain[0] if is_one else plain)
        return
    print_estimates(found, operations=operations, memory=show_memory)


def _row(estimate: ModelEstimate) -> dict[str, Any]:
    """An estimate as a row: what was asked, the figures, memory, and the times of each kind of operation."""
    document = estimate.to_dict()
    options, memory = document.pop("options"), document.pop("memory")
    for name in ("prompt_stage_us", "assumptions"):  # lists, of which a table has no cells
        del document[name]
    steps = {name: document.pop(name) for name in ("prefill", "decode")}
    row = {"model": document.pop("model_name"), "arch": document.pop("arch_name")}
    row |= options | document | {name: value for name, value in memory.items() if not isinstance(value, dict)}
    for name, step in steps.items():
        row[f"{name}_us"] = step["latency_us"]
        row |= {f"{name}_{kind}_us": us for kind, us in step["us_by_kind"].items()}
    return row
