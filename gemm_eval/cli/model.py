"""The commands on the GEMMs of whole models: `gemms` and `prewarm`."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Any

import typer

from gemm_eval.cli.options import (
    ArchOption,
    ClockOption,
    CorrectionOption,
    IdleCoresOption,
    JsonOption,
    L2Option,
    ModelLibraryOption,
    PolicyOption,
)

__all__ = [
    "DenseDtypeOption", "DtypeOption", "ExpertDtypeOption", "ExpertLoadOption", "IgnoreMemoryOption", "KvDtypeOption",
    "MemoryOption", "ModelArgument", "Phase", "gemms", "prewarm",
]  # fmt: skip

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Preset name, or a Hugging Face config.json or a folder with one.", show_default=False
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Types of projections, feed-forward networks and experts: bf16, fp8, w4a16, ... Default: as the model's "
        "file says, else the default type of the arch."
    ),
]
DenseDtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Type of what checkpoints keep: scores and values of attention, KV cache, routers, LM head. Default: the "
        "input type of --dtype, or bf16 where that has fewer than 16 bits (fp16 on an arch without bf16)."
    ),
]
ExpertDtypeOption = Annotated[
    str | None,
    typer.Option(help="Types of routed experts alone, such as w4a16_mxfp4 for gpt-oss. Default: those of --dtype."),
]
ExpertLoadOption = Annotated[
    str,
    typer.Option(
        metavar="WORD",
        help="Rows of each expert: uniform: as routing at random gives in expectation; balanced or power_law_ALPHA: of "
        "the most loaded device, in a seeded draw; expected: the active experts, all as many.",
    ),
]
KvDtypeOption = Annotated[
    str | None,
    typer.Option(help="Type of the KV cache. Default: that of the checkpoint if it says one, else of --dense-dtype."),
]
NewTokensOption = Annotated[
    int | None,
    typer.Option(
        help="New tokens of the --seq-len positions: a chunk of prefill, or tokens guessed in decode. Default: all in "
        "prefill, 1 in decode.",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    bool,
    typer.Option("--memory", help="Also show what takes the memory of a device, part by part, and the largest batch."),
]
IgnoreMemoryOption = Annotated[
    bool,
    typer.Option("--ignore-memory", help="Go on where the model is larger than the DRAM of a GPU."),
]


class Phase(enum.StrEnum):
    """Which forward pass."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"

    @property
    def names(self) -> tuple[str, ...]:
        """The phases that it stands for."""
        return ("prefill", "decode") if self is Phase.BOTH else (self.value,)


PhaseOption = Annotated[Phase, typer.Option(help="prefill: seq-len new tokens each; decode: one new token each.")]


def _count(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", help=text)


def gemms(
    model: ModelArgument,
    arch: ArchOption,
    phase: PhaseOption = Phase.BOTH,
    batch_size: Annotated[int, _count("batch", "Number of sequences.")] = 1,
    seq_len: Annotated[
        int, _count("seq-len", "Tokens of a sequence: new ones in prefill, the context in decode.")
    ] = 2048,
    tensor_parallel: Annotated[int, _count("tp", "Tensor parallel degree.")] = 1,
    expert_parallel: Annotated[int, _count("ep", "Expert parallel degree; of models with experts.")] = 1,
    dtype: DtypeOption = None,
    dense_dtype: DenseDtypeOption = None,
    expert_dtype: ExpertDtypeOption = None,
    expert_load: ExpertLoadOption = "uniform",
    pipeline_parallel: Annotated[
        int, _count("pp", "Pipeline parallel degree. Memory is that of the stage that holds most; GEMMs are of all.")
    ] = 1,
    new_tokens: NewTokensOption = None,
    kv_dtype: KvDtypeOption = None,
    show_memory: MemoryOption = False,
    ignore_memory: IgnoreMemoryOption = False,
    library: ModelLibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    correction: CorrectionOption = None,
    idle_cores: IdleCoresOption = True,
    policy: PolicyOption = None,
    json: JsonOption = False,
) -> None:
    """Show the GEMMs of a model on an arch, layer by layer: shape, time, bound and share.

    Times of one device; sums cover GEMMs only, not norms, softmax or communication, and attention is modelled
    unfused and over the full square: `gemm-eval model` has whole steps. A model that does not fit into the DRAM of a
    GPU is refused.

    Examples:

    gemm-eval gemms llama-3-8b --arch h200-sxm --phase decode --batch 16 --seq-len 4096
    """
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.transformer import (
        WHAT_COUNTS,
        check_memory,
        load_model,
        memory_document,
        model_memory,
        transformer_gemms,
        types_on,
    )

    evaluator = GEMMEvaluator(
        arch, allow_idle_cores=idle_cores, policy=policy, library=library, l2=l2, clock=clock, correction=correction
    )
    config = load_model(model)
    asked: dict[str, Any] = {
        "batch_size": batch_size, "seq_len": seq_len, "tensor_parallel": tensor_parallel,
        "expert_parallel": expert_parallel, **types_on(evaluator.arch, dtype, dense_dtype, config),
        "expert_dtype": expert_dtype,
    }  # fmt: skip
    held = asked | {"pipeline_parallel": pipeline_parallel, "kv_dtype": kv_dtype}
    memory = model_memory(config, **held) if ignore_memory else check_memory(config, evaluator.arch, **held)
    phases = {}
    for name in phase.names:
        found = transformer_gemms(
            config,
            phase=name,  # type: ignore[arg-type]
            expert_load=expert_load,
            new_tokens=new_tokens,
            **asked,
        )
        phases[name] = list(zip(found, evaluator.evaluate_many([gemm.problem for gemm in found]), strict=True))
    if json:
        from gemm_eval.cli.output import print_json

        document = {
            name: [
                {"name": gemm.name, "total_count": gemm.total_count, "result": result.to_dict()}
                for gemm, result in rows
            ]
            for name, rows in phases.items()
        }
        head = {"model": config.name, "arch": evaluator.arch.name, "what_counts": WHAT_COUNTS}
        document_of_memory = memory_document(memory, config, evaluator.arch if show_memory else None, **held)
        print_json(head | {"memory": document_of_memory, "phases": document})
    else:
        from gemm_eval.cli.render_model import print_memory, print_notes, print_phase

        for name, rows in phases.items():
            tokens = batch_size * (new_tokens or (seq_len if name == "prefill" else 1))
            print_phase(f"{config.name} on {evaluator.arch.name}, {name}", config, rows, tokens)
        if show_memory:
            print_memory(memory_document(memory, config, evaluator.arch, **held))
        print_notes(memory, evaluator.arch)


def prewarm(
    model: ModelArgument,
    arch: ArchOption,
    batch_sizes: Annotated[list[int], _count("batch", "Number of sequences; repeat for several.")] = [1],  # noqa: B006  typer reads it
    seq_lens: Annotated[list[int], _count("seq-len", "Tokens of a sequence; repeat for several.")] = [2048],  # noqa: B006
    phase: PhaseOption = Phase.BOTH,
    tensor_parallel: Annotated[list[int], _count("tp", "Tensor parallel degree; repeat for several.")] = [1],  # noqa: B006
    expert_parallel: Annotated[
        list[int], _count("ep", "Expert parallel degree, of models with experts; repeat for several.")
    ] = [1],  # noqa: B006
    dtypes: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="As for `gemm-eval gemms`; repeat for several."),
    ] = None,
    dense_dtype: DenseDtypeOption = None,
    library: ModelLibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    correction: CorrectionOption = None,
    idle_cores: IdleCoresOption = True,
    policy: PolicyOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate every GEMM of a model, for all combinations given, and keep the results on disk for later processes.

    Examples:

    gemm-eval prewarm llama-3-70b --arch sg2260 --batch 1 --batch 16 --seq-len 4096
    """
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.transformer.prewarm import prewarm as run

    report = run(
        GEMMEvaluator(
            arch, allow_idle_cores=idle_cores, policy=policy, library=library, l2=l2, clock=clock, correction=correction
        ),
        model,
        batch_sizes=batch_sizes,
        seq_lens=seq_lens,
        phases=phase.names,  # type: ignore[arg-type]
        tensor_parallel=tensor_parallel,
        expert_parallel=expert_parallel,
        dtypes=dtypes or (None,),
        dense_dtype=dense_dtype,
    )
    if json:
        from gemm_eval.cli.output import print_json

        print_json(dataclasses.asdict(report))
    else:
        from gemm_eval.cli.output import print_line

        print_line(str(report))
