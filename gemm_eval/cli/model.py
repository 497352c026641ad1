"""The commands on whole models: `gemms`, `prewarm`, and `model`, how soon, how fast, and whether it fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

import gemm_eval
from gemm_eval.cli import options as opt
from gemm_eval.cli.values import SEVERAL, check_count, parse_all_values, parse_values, refuse

if TYPE_CHECKING:
    from gemm_eval.transformer import LayerGemm, ModelConfig

_REQUESTS, _DEVICES, _KERNELS = "Requests", "Devices", "Kernels"

PassOption = Annotated[opt.Pass, opt.option(
    "prefill: seq-len new tokens each; decode: one new token each; train: a microbatch, each GEMM with both gradients."
)]  # fmt: skip


def _counts(name: str, text: str, panel: str | None = None, *more: str) -> Any:
    return opt.option(f"{text} {SEVERAL}", f"--{name}", *more, metavar="N,...", panel=panel)


def gemms(
    ctx: typer.Context,
    *,
    model: opt.ModelArgument,
    arch: opt.ArchOption,
    phase: PassOption = "both",
    batch: Annotated[str, _counts("batch", "Number of sequences.")] = "1",
    seq_len: Annotated[
        str, _counts("seq-len", "Tokens of a sequence: new ones in prefill, the context in decode.")
    ] = "2048",
    tensor_parallel: Annotated[int, opt.option("Tensor parallel degree.", "--tp")] = 1,
    expert_parallel: Annotated[int, opt.option("Expert parallel degree; of models with experts.", "--ep")] = 1,
    types: opt.ModelTypes,
    pipeline_parallel: Annotated[
        int, opt.option("Pipeline parallel degree. Memory is that of the fullest stage.", "--pp")
    ] = 1,
    new_tokens: Annotated[int | None, opt.option(
        "New tokens of the --seq-len positions: a chunk of prefill, or tokens guessed in decode. Default: all in "
        "prefill, 1 in decode.", show_default=False
    )] = None,
    kv_dtype: opt.KvDtypeOption = None,
    memory: opt.MemoryOptions,
    run: opt.ModelRunOnChip,
    output: opt.Output,
) -> None:  # fmt: skip
    """Show the GEMMs of a model on an arch, layer by layer: shape, time, bound and share.

    Times of one device; sums cover GEMMs only, not norms, softmax or communication, and attention is modelled
    unfused and over the full square: `gemm-eval model` has whole steps of inference, `gemm-eval train` those of
    training. A model that does not fit into the DRAM of a GPU is refused in inference.

    Examples:

    gemm-eval gemms llama-3-8b --arch h200-sxm --phase decode --batch 16 --seq-len 4096

    gemm-eval gemms llama-3-8b --arch h200-sxm --phase decode --batch 1..256 --out gemms.csv

    gemm-eval gemms llama-3-8b --arch h200-sxm --phase train --dtype fp8
    """
    from gemm_eval.transformer import load_model, model_on, types_on

    if output.out is not None:
        refuse(ctx, "--out", {"show_memory"})
    batches, seq_lens = parse_values("--batch", batch), parse_values("--seq-len", seq_len)
    check_count(len(batches) * len(seq_lens), "--batch and --seq-len")
    evaluator = run.evaluator(arch)
    config = model_on(evaluator.arch, load_model(model))
    asked: dict[str, Any] = {
        "tensor_parallel": tensor_parallel, "expert_parallel": expert_parallel, "expert_dtype": types.expert_dtype,
        **types_on(evaluator.arch, types.dtype, types.dense_dtype, config),
    }  # fmt: skip
    held = {"pipeline_parallel": pipeline_parallel, "kv_dtype": kv_dtype}
    how = {"expert_load": types.expert_load, "new_tokens": new_tokens}
    passes = [
        _Passes(evaluator, config, asked | {"batch_size": num, "seq_len": tokens}, phase, how, held, memory)
        for num in batches
        for tokens in seq_lens
    ]

    def show() -> None:
        for item in passes:
            item.show()

    output.give(
        lambda: (row for item in passes for row in item.rows()),
        lambda: opt.one_or_all([item.document() for item in passes]),
        show,
    )


@dataclasses.dataclass
class _Passes:
    """The GEMMs of the forward passes of one batch and length."""

    evaluator: gemm_eval.GEMMEvaluator
    config: ModelConfig
    asked: dict[str, Any]
    phase: opt.Pass
    how: dict[str, Any]
    held: dict[str, Any]
    options: opt.MemoryOptions

    def __post_init__(self) -> None:
        from gemm_eval.transformer import MemoryShare, check_memory, model_memory, transformer_gemms

        self.held, frac = self.asked | self.held, self.options.memory_frac
        self.share = MemoryShare() if frac is None else MemoryShare(frac)
        self.memory = (
            model_memory(self.config, **self.held)
            if self.options.ignore_memory or self.phase == "train"
            else check_memory(self.config, self.evaluator.arch, share=self.share, **self.held)
        )
        self.phases: dict[str, list[tuple[LayerGemm, gemm_eval.GEMMResult]]] = {}
        for name in opt.phases_of(self.phase):
            layers = transformer_gemms(self.config, phase=name, **self.how, **self.asked)
            table = self.evaluator.evaluate_many([gemm.problem for gemm in layers])
            self.phases[name] = list(zip(layers, table, strict=True))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each kind of GEMM: where it is from, how often it is in the model, and its result."""
        from gemm_eval.cli.output import row_of

        sizes = {name: self.asked[name] for name in ("batch_size", "seq_len")}
        for phase, rows in self.phases.items():
            for gemm, result in rows:
                count = {"gemm": gemm.name, "total_count": gemm.total_count}
                yield {"model": self.config.name, "phase": phase, **sizes, **count, **row_of(result)}

    def document(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        from gemm_eval.transformer import WHAT_COUNTS

        phases = {
            name: [{"name": gemm.name, "total_count": gemm.total_count, "result": of.to_dict()} for gemm, of in rows]
            for name, rows in self.phases.items()
        }
        head = {"model": self.config.name, "arch": self.evaluator.arch.name, "what_counts": WHAT_COUNTS}
        held = {} if self.phase == "train" else {"memory": self.memory_document()}
        return head | held | {"phases": phases}

    def show(self) -> None:
        """Print a table for each phase."""
        from gemm_eval.cli.render_model import print_memory, print_notes, print_phase

        arch, config, batch = self.evaluator.arch, self.config, self.asked["batch_size"]
        for name, rows in self.phases.items():
            each = self.how["new_tokens"] or (1 if name == "decode" else self.asked["seq_len"])
            print_phase(f"{config.name} on {arch.name}, {name}", config, rows, batch * each)
        if self.options.show_memory:
            print_memory(self.memory_document())
        print_notes(None if self.phase == "train" else self.memory, arch, self.share)

    def memory_document(self) -> dict[str, Any]:
        """Return what the model takes of a device; the largest batch too, which takes time, where memory is shown."""
        from gemm_eval.transformer import memory_document

        arch = self.evaluator.arch if self.options.show_memory else None
        return memory_document(self.memory, self.config, arch, share=self.share, **self.held)


def prewarm(
    *,
    model: opt.ModelArgument,
    arch: opt.ArchOption,
    batch: Annotated[list[str], _counts("batch", "Number of sequences.")] = ["1"],  # noqa: B006  typer reads it
    seq_len: Annotated[list[str], _counts("seq-len", "Tokens of a sequence.")] = ["2048"],  # noqa: B006
    phase: PassOption = "both",
    tensor_parallel: Annotated[list[str], _counts("tp", "Tensor parallel degree.")] = ["1"],  # noqa: B006
    expert_parallel: Annotated[list[str], _counts("ep", "Expert parallel degree, of models with experts.")] = ["1"],  # noqa: B006
    dtypes: Annotated[
        list[str] | None,
        opt.option("As for `gemm-eval gemms`; repeat for several.", "--dtype", complete=opt.complete_schemes),
    ] = None,
    dense_dtype: opt.DenseDtypeOption = None,
    run: opt.ModelRunOnChip,
    json: opt.JsonOption = False,
) -> None:
    """Evaluate every GEMM of a model, for all combinations given, and keep the results on disk for later processes.

    Examples:

    gemm-eval prewarm llama-3-70b --arch sg2260 --batch 1..64 --seq-len 4096
    """
    from gemm_eval.cli.output import print_line

    report = gemm_eval.prewarm(
        run.evaluator(arch), model, batch_sizes=parse_all_values("--batch", batch),
        seq_lens=parse_all_values("--seq-len", seq_len), phases=opt.phases_of(phase),
        tensor_parallel=parse_all_values("--tp", tensor_parallel),
        expert_parallel=parse_all_values("--ep", expert_parallel), dtypes=dtypes or (None,), dense_dtype=dense_dtype,
    )  # fmt: skip
    opt.give(json, lambda: dataclasses.asdict(report), lambda: print_line(str(report)))


def model(
    ctx: typer.Context,
    *,
    model: opt.ModelArgument,
    arch: opt.ArchesOption,
    batch: Annotated[str, _counts("batch", "Sequences that are decoded together.", _REQUESTS)] = "1",
    prompt_len: Annotated[str, _counts("prompt", "Tokens of a prompt.", _REQUESTS, "--isl")] = "1024",
    output_len: Annotated[int, opt.option("Tokens of an answer.", "--output", "--osl", panel=_REQUESTS)] = 256,
    chunk_tokens: Annotated[int | None, opt.option(
        "Tokens of a prompt in one step, at most. Default: the engine's, 8192.", "--chunk", show_default=False,
        panel=_REQUESTS
    )] = None,
    speculative_tokens: Annotated[
        int, opt.option("Tokens guessed and verified in a step.", "--speculate", panel=_REQUESTS)
    ] = 0,
    acceptance: Annotated[float, opt.option("Share of guesses that hold.", panel=_REQUESTS)] = 0.7,
    tensor_parallel: Annotated[int, opt.option("Tensor parallel degree.", "--tp", panel=_DEVICES)] = 1,
    pipeline_parallel: Annotated[int, opt.option("Pipeline parallel degree.", "--pp", panel=_DEVICES)] = 1,
    expert_parallel: Annotated[
        int, opt.option("Expert parallel degree; of models with experts.", "--ep", panel=_DEVICES)
    ] = 1,
    types: opt.ModelTypes,
    kv_dtype: opt.KvDtypeOption = None,
    fused: Annotated[bool | None, opt.option(
        "Attention. Default: fused where it can be.", "--fused/--unfused", show_default=False, panel=_KERNELS
    )] = None,
    separate_quantization: Annotated[bool, opt.option(
        "Quantize activations by a separate kernel before each fp8, fp4 or int8 GEMM. "
        "Default: as engines, in the norm or activation before, and in attention where there "
        "is one static scale (fp8).",
        "--separate-quantization", panel=_KERNELS
    )] = False,
    interconnect: opt.InterconnectOption = None,
    engine: Annotated[str, opt.option(
        "Serving engine, with its kernels and host times: ideal (the sum of the kernels), vllm, sglang, trtllm, or "
        "a YAML file.", metavar="NAME|FILE", panel=_KERNELS
    )] = "ideal",
    run: opt.ModelRun,
    operations: Annotated[bool, opt.option("Also show the time of each operation.", "--operations")] = False,
    memory: opt.MemoryOptions,
    output: opt.Output,
) -> None:  # fmt: skip
    """Predict TTFT, TPOT, tokens a second and memory of a model on an arch.

    A step is the sum of its operations: GEMMs, fused attention, experts, collectives, and memory-bound kernels. The
    chunks of a prompt follow each other through the pipeline stages. With --engine the time that the GPU waits for
    the engine's host is included, the network to clients is not. A model that does not fit is refused, with changes
    that would make it fit; several batches or prompts show which fit.

    Examples:

    gemm-eval model llama-3-8b --arch h200-sxm --batch 1,16,64 --prompt 4096 --operations

    gemm-eval model llama-3-70b --arch h200-sxm --arch b200 --tp 4 --batch 64 --dtype fp8

    gemm-eval model deepseek-v3 --arch b200 --tp 8 --batch 1..256 --prompt 4096 --engine sglang --out served.csv
    """  # fmt: skip
    from gemm_eval.cli.render_model import print_estimates
    from gemm_eval.transformer import Fusions

    if output.out is not None:
        refuse(ctx, "--out", {"operations", "show_memory"})
    batches, prompts = parse_values("--batch", batch), parse_values("--prompt", prompt_len)
    num = len(arch) * len(batches) * len(prompts)
    check_count(num, "--arch, --batch and --prompt")
    options: dict[str, Any] = {
        "output_len": output_len, "tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel,
        "expert_parallel": expert_parallel, **vars(types), "kv_dtype": kv_dtype,
        "speculative_tokens": speculative_tokens, "acceptance": acceptance, "fused": fused,
        "memory_frac": memory.memory_frac, "ignore_memory": memory.ignore_memory or num > 1,
        "fusions": Fusions(quantization=False) if separate_quantization else None, "interconnect": interconnect,
        "engine": engine,
    }  # fmt: skip
    if chunk_tokens is not None:
        options["chunk_tokens"] = chunk_tokens
    evaluators = [run.evaluator(name) for name in arch]
    estimates = list(gemm_eval.estimate_models([model], evaluators, batches, prompts, **options))

    output.give(
        lambda: map(_row, estimates),
        lambda: opt.one_or_all([estimate.to_dict() for estimate in estimates]),
        lambda: print_estimates(estimates, operations=operations, memory=memory.show_memory),
    )


def _row(estimate: gemm_eval.ModelEstimate) -> dict[str, Any]:
    """Return an estimate as a row: options, figures, memory, and the times of each kind of operation."""
    document = estimate.to_dict()
    options, memory = document.pop("options"), document.pop("memory")
    del document["engine"]  # `options` has its name
    for name in ("prompt_stage_us", "assumptions", "basis"):  # lists, of which a table has no cells
        del document[name]
    steps = {name: document.pop(name) for name in ("prefill", "decode")}
    row = {"model": document.pop("model_name"), "arch": document.pop("arch_name")}
    row |= options | document | {name: value for name, value in memory.items() if not isinstance(value, dict)}
    for name, step in steps.items():
        row[f"{name}_us"] = step["latency_us"]
        row |= {f"{name}_{kind}_us": us for kind, us in step["us_by_kind"].items()}
    return row
