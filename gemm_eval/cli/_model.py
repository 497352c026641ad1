"""The commands on whole models: `model` and `prewarm`."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Any

import typer

from gemm_eval.cli._options import ClockOption, IdleCoresOption, JsonOption, L2Option, ModelLibraryOption

__all__ = ["Phase", "model", "prewarm"]

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Preset name, or a Hugging Face config.json or a folder with one.", show_default=False
    ),
]
ArchOption = Annotated[str, typer.Option(help="Preset name or YAML file of an architecture.", metavar="NAME")]
DtypeOption = Annotated[
    str | None,
    typer.Option(help="Types of weight GEMMs: bf16, fp16, w4a16, ... Default: the default type of the arch."),
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


def model(
    model: ModelArgument,
    arch: ArchOption,
    phase: PhaseOption = Phase.BOTH,
    batch_size: Annotated[int, _count("batch", "Number of sequences.")] = 1,
    seq_len: Annotated[
        int, _count("seq-len", "Tokens of a sequence: new ones in prefill, the context in decode.")
    ] = 2048,
    tensor_parallel: Annotated[int, _count("tp", "Tensor parallel degree.")] = 1,
    expert_parallel: Annotated[int, _count("ep", "Expert parallel degree.")] = 1,
    dtype: DtypeOption = None,
    library: ModelLibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    idle_cores: IdleCoresOption = True,
    json: JsonOption = False,
) -> None:
    """Show the GEMMs of a model on an arch, layer by layer: shape, time, bound and share.

    Times in us of one device; sums cover GEMMs only, not norms, softmax or communication.
    """
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.transformer import load_model, transformer_gemms

    evaluator = GEMMEvaluator(arch, allow_idle_cores=idle_cores, library=library, l2=l2, clock=clock)
    config = load_model(model)
    phases = {}
    for name in phase.names:
        gemms = transformer_gemms(
            config,
            phase=name,  # type: ignore[arg-type]
            batch_size=batch_size,
            seq_len=seq_len,
            tensor_parallel=tensor_parallel,
            expert_parallel=expert_parallel,
            dtype=str(evaluator.arch.default_dtype) if dtype is None else dtype,
        )
        phases[name] = list(zip(gemms, evaluator.evaluate_many([gemm.problem for gemm in gemms]), strict=True))
    if json:
        from gemm_eval.cli._output import print_json

        document = {
            name: [
                {"name": gemm.name, "total_count": gemm.total_count, "result": result.to_dict()}
                for gemm, result in rows
            ]
            for name, rows in phases.items()
        }
        print_json({"model": config.name, "arch": evaluator.arch.name, "phases": document})
    else:
        from gemm_eval.cli._render_model import print_phase

        for name, rows in phases.items():
            tokens = batch_size * (seq_len if name == "prefill" else 1)
            print_phase(f"{config.name} on {evaluator.arch.name}, {name}", config, rows, tokens)


def prewarm(
    model: ModelArgument,
    arch: ArchOption,
    batch_sizes: Annotated[list[int], _count("batch", "Number of sequences; repeat for several.")] = [1],  # noqa: B006  typer reads it
    seq_lens: Annotated[list[int], _count("seq-len", "Tokens of a sequence; repeat for several.")] = [2048],  # noqa: B006
    phase: PhaseOption = Phase.BOTH,
    tensor_parallel: Annotated[list[int], _count("tp", "Tensor parallel degree; repeat for several.")] = [1],  # noqa: B006
    expert_parallel: Annotated[list[int], _count("ep", "Expert parallel degree; repeat for several.")] = [1],  # noqa: B006
    dtypes: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="Types of weight GEMMs; repeat for several. Default: that of the arch."),
    ] = None,
    library: ModelLibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    idle_cores: IdleCoresOption = True,
    json: JsonOption = False,
) -> None:
    """Evaluate every GEMM of a model, for all combinations given, and keep the results on disk for later processes."""
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.transformer.prewarm import prewarm as run

    report = run(
        GEMMEvaluator(arch, allow_idle_cores=idle_cores, library=library, l2=l2, clock=clock),
        model,
        batch_sizes=batch_sizes,
        seq_lens=seq_lens,
        phases=phase.names,  # type: ignore[arg-type]
        tensor_parallel=tensor_parallel,
        expert_parallel=expert_parallel,
        dtypes=dtypes or (None,),
    )
    if json:
        from gemm_eval.cli._output import print_json

        print_json(dataclasses.asdict(report))
    else:
        from gemm_eval.cli._output import say

        say(str(report))
