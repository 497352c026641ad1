"""The commands on the GEMMs of whole models: `gemms` and `prewarm`."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli.completion import complete_models, complete_schemes, complete_types
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
from gemm_eval.cli.ranges import SEVERAL, check_count, parse_all_values, parse_values
from gemm_eval.cli.tables import OutOption, check_out, row_of, write_records
from gemm_eval.cli.words import refuse

if TYPE_CHECKING:
    from gemm_eval.evaluate import GEMMEvaluator, GEMMResult
    from gemm_eval.transformer import LayerGemm, ModelConfig

__all__ = [
    "MEMORY_FRAC",
    "DenseDtypeOption",
    "DtypeOption",
    "ExpertDtypeOption",
    "ExpertLoadOption",
    "IgnoreMemoryOption",
    "KvDtypeOption",
    "MemoryFracOption",
    "MemoryOption",
    "ModelArgument",
    "Phase",
    "gemms",
    "prewarm",
]  # fmt: skip

MEMORY_FRAC = 0.9  # `gemm_eval.transformer.MEMORY_FRAC`, without importing the models for --help

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Preset name, or a Hugging Face config.json or a folder with one.",
        show_default=False,
        autocompletion=complete_models,
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Types of projections, feed-forward networks and experts: bf16, fp8, w4a16, ... Default: as the model's "
        "file says, else the default type of the arch.",
        autocompletion=complete_schemes,
    ),
]
DenseDtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Type of what checkpoints keep: scores and values of attention, KV cache, routers, LM head. Default: the "
        "input type of --dtype, or bf16 where that has fewer than 16 bits (fp16 on an arch without bf16).",
        autocompletion=complete_types,
    ),
]
ExpertDtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Types of routed experts alone, such as w4a16_mxfp4 for gpt-oss. Default: those of --dtype.",
        autocompletion=complete_schemes,
    ),
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
    typer.Option(
        help="Type of the KV cache. Default: that of the checkpoint if it says one, else of --dense-dtype.",
        autocompletion=complete_types,
    ),
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
MemoryFracOption = Annotated[
    float,
    typer.Option("--memory-frac", help="Share of the DRAM of a GPU that a model may use, as vLLM has it."),
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


def _counts(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", help=f"{text} {SEVERAL}", metavar="N,...")


def gemms(
    ctx: typer.Context,
    model: ModelArgument,
    arch: ArchOption,
    phase: PhaseOption = Phase.BOTH,
    batch: Annotated[str, _counts("batch", "Number of sequences.")] = "1",
    seq_len: Annotated[
        str, _counts("seq-len", "Tokens of a sequence: new ones in prefill, the context in decode.")
    ] = "2048",
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
    memory_frac: MemoryFracOption = MEMORY_FRAC,
    ignore_memory: IgnoreMemoryOption = False,
    library: ModelLibraryOption = None,
    l2: L2Option = None,
    clock: ClockOption = None,
    correction: CorrectionOption = None,
    idle_cores: IdleCoresOption = True,
    policy: PolicyOption = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Show the GEMMs of a model on an arch, layer by layer: shape, time, bound and share.

    Times of one device; sums cover GEMMs only, not norms, softmax or communication, and attention is modelled
    unfused and over the full square: `gemm-eval model` has whole steps. A model that does not fit into the DRAM of a
    GPU is refused.

    Examples:

    gemm-eval gemms llama-3-8b --arch h200-sxm --phase decode --batch 16 --seq-len 4096

    gemm-eval gemms llama-3-8b --arch h200-sxm --phase decode --batch 1..256 --out gemms.csv
    """
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.transformer import load_model, model_on, types_on

    check_out(out)
    if out is not None:
        refuse(ctx, "--out", {"show_memory"})
    batches, seq_lens = parse_values("--batch", batch), parse_values("--seq-len", seq_len)
    check_count(len(batches) * len(seq_lens), "--batch and --seq-len")
    evaluator = GEMMEvaluator(
        arch, allow_idle_cores=idle_cores, policy=policy, library=library, l2=l2, clock=clock, correction=correction
    )
    config = model_on(evaluator.arch, load_model(model))
    same: dict[str, Any] = {
        "tensor_parallel": tensor_parallel, "expert_parallel": expert_parallel, "expert_dtype": expert_dtype,
        **types_on(evaluator.arch, dtype, dense_dtype, config),
    }  # fmt: skip
    passes = [
        _Passes(
            evaluator, config, same | {"batch_size": num, "seq_len": tokens}, phase, expert_load, new_tokens,
            {"pipeline_parallel": pipeline_parallel, "kv_dtype": kv_dtype}, memory_frac,
            ignore_memory=ignore_memory,
        )
        for num in batches
        for tokens in seq_lens
    ]  # fmt: skip
    if out is not None:
        write_records(out, [row for some in passes for row in some.rows()], json=json)
    elif json:
        from gemm_eval.cli.output import print_json

        documents = [some.document(show_memory=show_memory) for some in passes]
        print_json(documents[0] if len(documents) == 1 else documents)
    else:
        for some in passes:
            some.show(show_memory=show_memory)


class _Passes:
    """The GEMMs of the forward passes of one batch and length."""

    def __init__(
        self, evaluator: GEMMEvaluator, config: ModelConfig, asked: dict[str, Any], phase: Phase, expert_load: str,
        new_tokens: int | None, held: dict[str, Any], memory_frac: float, *, ignore_memory: bool,
    ) -> None:  # fmt: skip
        from gemm_eval.transformer import check_memory, model_memory, transformer_gemms

        self._evaluator, self._config, self._asked, self._new_tokens = evaluator, config, asked, new_tokens
        self._held, self._memory_frac = asked | held, memory_frac
        self._memory = (
            model_memory(config, **self._held)
            if ignore_memory
            else check_memory(config, evaluator.arch, memory_frac=memory_frac, **self._held)
        )
        self._phases: dict[str, list[tuple[LayerGemm, GEMMResult]]] = {}
        for name in phase.names:
            found = transformer_gemms(
                config,
                phase=name,  # type: ignore[arg-type]
                expert_load=expert_load,
                new_tokens=new_tokens,
                **asked,
            )
            table = evaluator.evaluate_many([gemm.problem for gemm in found])
            self._phases[name] = list(zip(found, table, strict=True))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each kind of GEMM: where it is from, how often it is in the model, and its result."""
        sizes = {name: self._asked[name] for name in ("batch_size", "seq_len")}
        for phase, rows in self._phases.items():
            for gemm, result in rows:
                count = {"gemm": gemm.name, "total_count": gemm.total_count}
                yield {"model": self._config.name, "phase": phase, **sizes, **count, **row_of(result)}

    def document(self, *, show_memory: bool) -> dict[str, Any]:
        """Return all of it as plain values."""
        from gemm_eval.transformer import WHAT_COUNTS, memory_document

        phases = {
            name: [
                {"name": gemm.name, "total_count": gemm.total_count, "result": result.to_dict()}
                for gemm, result in rows
            ]
            for name, rows in self._phases.items()
        }
        arch = self._evaluator.arch
        memory = memory_document(
            self._memory, self._config, arch if show_memory else None, memory_frac=self._memory_frac, **self._held
        )
        head = {"model": self._config.name, "arch": arch.name, "what_counts": WHAT_COUNTS}
        return head | {"memory": memory, "phases": phases}

    def show(self, *, show_memory: bool) -> None:
        """Print a table for each phase."""
        from gemm_eval.cli.render_model import print_memory, print_notes, print_phase
        from gemm_eval.transformer import memory_document

        arch, config, batch = self._evaluator.arch, self._config, self._asked["batch_size"]
        for name, rows in self._phases.items():
            each = self._new_tokens or (self._asked["seq_len"] if name == "prefill" else 1)
            print_phase(f"{config.name} on {arch.name}, {name}", config, rows, batch * each)
        if show_memory:
            print_memory(memory_document(self._memory, config, arch, memory_frac=self._memory_frac, **self._held))
        print_notes(self._memory, arch, self._memory_frac)


def prewarm(
    model: ModelArgument,
    arch: ArchOption,
    batch: Annotated[list[str], _counts("batch", "Number of sequences.")] = ["1"],  # noqa: B006  typer reads it
    seq_len: Annotated[list[str], _counts("seq-len", "Tokens of a sequence.")] = ["2048"],  # noqa: B006
    phase: PhaseOption = Phase.BOTH,
    tensor_parallel: Annotated[list[str], _counts("tp", "Tensor parallel degree.")] = ["1"],  # noqa: B006
    expert_parallel: Annotated[list[str], _counts("ep", "Expert parallel degree, of models with experts.")] = ["1"],  # noqa: B006
    dtypes: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="As for `gemm-eval gemms`; repeat for several.", autocompletion=complete_schemes),
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

    gemm-eval prewarm llama-3-70b --arch sg2260 --batch 1..64 --seq-len 4096
    """
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.transformer.prewarm import prewarm as run

    report = run(
        GEMMEvaluator(
            arch, allow_idle_cores=idle_cores, policy=policy, library=library, l2=l2, clock=clock, correction=correction
        ),
        model,
        batch_sizes=parse_all_values("--batch", batch),
        seq_lens=parse_all_values("--seq-len", seq_len),
        phases=phase.names,  # type: ignore[arg-type]
        tensor_parallel=parse_all_values("--tp", tensor_parallel),
        expert_parallel=parse_all_values("--ep", expert_parallel),
        dtypes=dtypes or (None,),
        dense_dtype=dense_dtype,
    )
    if json:
        from gemm_eval.cli.output import print_json

        print_json(dataclasses.asdict(report))
    else:
        from gemm_eval.cli.output import print_line

        print_line(str(report))
