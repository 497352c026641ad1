"""Options that commands share, in groups: a dataclass each, whose fields `command` spreads over a command line.

A command takes a group as one value::

    @command(app)
    def top(arch: ArchOption, gemm: GemmOptions, output: Output) -> None: ...

What a shell completes is here too. Nothing heavy is imported at the top, since a shell waits for it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer

from gemm_eval.cli.values import GPU_MAPPING_FORM, MAPPING_FORM, SEVERAL, Command, Group, Sizes, names_of_sizes
from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.arch import ArchSpec, GpuSpec
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.workload import GemmProblem

EXIT_CODES = (
    "Exit codes: 0 ok; 1 a check failed, or a folder could not be written; 2 wrong usage or bad input; 3 a valid GEMM "
    "that does not fit the arch or that the arch cannot run. Errors are one line on stderr, or with --json one JSON "
    "object on stderr."
)
"""The end of every --help."""


def group(text: str, cls: type[Group] = Group) -> typer.Typer:
    """Return a group of commands with this help."""
    return typer.Typer(cls=cls, no_args_is_help=True, help=text, epilog=EXIT_CODES)


CommandFunction = Callable[..., None]


def command(
    app: typer.Typer, name: str | None = None, *, needs_words: bool = True
) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that makes a function a command of `app`; one that needs words prints its help without any."""

    def add(function: CommandFunction) -> CommandFunction:
        app.command(name, cls=Command, no_args_is_help=needs_words, epilog=EXIT_CODES)(spread(function))
        return function

    return add


def spread(function: CommandFunction) -> CommandFunction:
    """Return a command as typer reads it: the options of each parameter that is a group stand in its place."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, tuple[Any, list[inspect.Parameter]]] = {}
    params: list[inspect.Parameter] = []
    for name, param in inspect.signature(function).parameters.items():
        hint = hints[name]
        kind: Any = get_args(hint)[0] if get_args(hint) else hint
        if is_dataclass(kind):
            if kind is Sizes:
                groups[name] = _size_params(*hint.__metadata__)
            else:
                of_group = get_type_hints(kind, include_extras=True)
                groups[name] = kind, [_param(of.name, of_group[of.name], of.default) for of in fields(kind)]
            params += groups[name][1]
        else:
            params.append(param.replace(annotation=hint, kind=param.KEYWORD_ONLY))
            if hint in _ARCHS:
                params.append(_param(_SET, SetOption))
            if hint is ModelArgument:
                params.append(_param(_NAMES, NamesOption))

    def run(**given: Any) -> None:
        given.pop(_NAMES, None)
        if changes := given.pop(_SET, None):
            if not (archs := given["arch"]):
                raise InvalidOptionError("--set changes an --arch: add one")
            given["arch"] = (
                _changed(archs, changes) if isinstance(archs, str) else [_changed(a, changes) for a in archs]
            )
        for name, (make, members) in groups.items():
            given[name] = make(**{member.name: given.pop(member.name) for member in members})
        function(**given)

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__annotations__ = {param.name: param.annotation for param in params}
    run.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    return run


def _changed(arch: str, changes: Sequence[str]) -> ArchSpec:
    """Return an arch with fields changed, each as ``name=value``."""
    from gemm_eval.arch import load_arch, read_value

    pairs = {name: value for name, _, value in (text.partition("=") for text in changes)}
    if wrong := [name for name, value in pairs.items() if not (name and value)]:
        raise InvalidOptionError(f"--set takes FIELD=VALUE, such as num_sms=160, got {shown(wrong[0])}")
    spec = load_arch(arch).with_(**{name.strip(): read_value(value) for name, value in pairs.items()})
    for sentence in spec.implausible_numbers():
        warnings.warn(f"--set: {sentence}", stacklevel=2)
    return spec


def gpu_of(arch: str | ArchSpec) -> GpuSpec:
    """Return the GPU of an option, a name or a changed arch; ArchValidationError: it is no GPU."""
    from gemm_eval.arch import GpuSpec, load_arch

    return arch if isinstance(arch, GpuSpec) else load_arch(arch if isinstance(arch, str) else arch.name, GpuSpec)


def _param(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option(text: str, *names: str, panel: str | None = None, complete: Any = None, **settings: Any) -> Any:
    """Return an option for `Annotated`: its help, its names where they are not the parameter's, its panel."""
    return typer.Option(*names, help=text, rich_help_panel=panel, autocompletion=complete, **settings)


def argument(text: str, metavar: str, *, complete: Any = None) -> Any:
    """Return an argument for `Annotated`, whose default its help tells."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete)


# Completion: names of archs, models and types that begin as the word does.


def _completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _presets(*folders: str) -> list[str]:
    from gemm_eval.arch import preset_files

    return sorted(preset_files(*folders))


def _measured(folder: str) -> list[str]:
    """Return presets with timings of operations: runs of served models are no such timings."""
    from gemm_eval.arch import data_root

    sets = {path.parent.name for path in (data_root() / "measured").glob("*/*") if path.name != "served"}
    return [*(name for name in _presets(folder) if name in sets), "all"]


def _types(*, has_schemes: bool) -> list[str]:
    from gemm_eval.dtypes import SHORTHANDS, DType

    names = [str(dtype) for dtype in DType if dtype.is_operand or (dtype.is_weight and not has_schemes)]
    return [*names, *SHORTHANDS] if has_schemes else names


complete_archs = _completion(partial(_presets, "gpu", "multicore"))
complete_gpus = _completion(partial(_presets, "gpu"))
complete_multicore = _completion(partial(_presets, "multicore"))
complete_measured_gpus = _completion(partial(_measured, "gpu"))
complete_measured_chips = _completion(partial(_measured, "multicore"))
complete_models = _completion(partial(_presets, "models"))
complete_types = _completion(partial(_types, has_schemes=False))
complete_schemes = _completion(partial(_types, has_schemes=True))


# Archs.

ArchOption = Annotated[
    str, option("Preset name or YAML file of an architecture.", metavar="NAME", complete=complete_archs)
]
ArchesOption = Annotated[list[str], option(
    "Preset name or YAML file of an architecture; repeat it to compare several.",
    metavar="NAME", complete=complete_archs
)]  # fmt: skip
OtherArchesOption = Annotated[list[str] | None, option(
    "With --model or --gemm: preset name or YAML file; repeat it to compare several.",
    metavar="NAME", complete=complete_archs
)]  # fmt: skip
GpuOption = Annotated[str, option("GPU preset or YAML file.", "--arch", metavar="NAME|FILE", complete=complete_gpus)]
ThisGpuOption = Annotated[str | None, option(
    "GPU for which the model chooses. Default: this machine's.", "--arch", metavar="NAME|FILE", complete=complete_gpus
)]  # fmt: skip
_ARCHS = (ArchOption, ArchesOption, OtherArchesOption, GpuOption, ThisGpuOption)
InterconnectOption = Annotated[str | None, option(
    "Topology of GPUs over PCIe in a server: pcie-one-socket or pcie-two-sockets (traffic crosses to another CPU). "
    "Default: from the arch.", metavar="NAME"
)]  # fmt: skip

_SET = "changes"
SetOption = Annotated[list[str] | None, option(
    "Change a field of every --arch for a what-if, such as num_sms=160 or l2_bytes=64MiB. Repeatable.", "--set",
    metavar="NAME=X"
)]  # fmt: skip

# Types, libraries and states that several commands take.

_TYPES, _GPU, _SIZES = "Data types", "GPUs only", "Sizes by name"
_LIBRARY_HELP = (
    "Kernel library: cublas, gemm-eval (our W4A16 kernels), trtllm (TensorRT-LLM: block-scaled types, "
    "narrow weights, int8 on Ampere and Ada, fp8 on Ada and RTX Blackwell), hypothetical (weight-only kernels that "
    "no library has), vllm or sglang (the kernels that an engine calls, by the nearest timed ones). Default "
    "(auto): cublas for dense types, trtllm for block-scaled ones, and for fp8 where it runs it; 4-bit weights: "
    "gemm-eval on Hopper, trtllm elsewhere; else hypothetical. The output names it. cublas/13.1 is a version that "
    "was timed."
)
DtypeOption = Annotated[str | None, option(
    "Shorthand for all types: fp32, tf32, fp16, bf16, fp8, fp4, int8 or int4 for both operands; w8a8; "
    "quantized weights: w4a16, w8a16, w4a8, w4a8_fp8, w4a8_mxfp4, w4a16_mxfp4, w4a16_nvfp4; block-scaled: fp8_block, "
    "mxfp8, mxfp4, nvfp4. Default: the default type of the arch.", panel=_TYPES, complete=complete_schemes
)]  # fmt: skip
ModelLibraryOption = Annotated[
    str | None, option(f"{_LIBRARY_HELP} GEMMs without kernels in the library use their default library.", panel=_GPU)
]
L2Option = Annotated[str | None, option(
    "cold: weights come from DRAM, activations as far as L2 has not kept them; cold-all: nothing is in L2; "
    "warm: operands are in L2 as far as they fit. Default: cold.", "--l2", panel=_GPU
)]  # fmt: skip
ClockOption = Annotated[str | None, option(
    "burst: the clock of an idle, cool GPU; sustained: the clock after minutes of load. Default: burst.", panel=_GPU
)]  # fmt: skip
CorrectionOption = Annotated[bool | None, option(
    "Apply the correction learned from timings, where there is one. Default: yes.",
    "--correction/--no-correction", panel=_GPU
)]  # fmt: skip
IdleCoresOption = Annotated[bool, option(
    "Allow mappings that leave some cores of a multi-core chip idle.", "--idle-cores/--no-idle-cores"
)]  # fmt: skip
PolicyOption = Annotated[str | None, option(
    "Multi-core chips with rules: library (the mapping that the library chooses) or best (the best of the chip). "
    "Default: from the YAML of the chip.", metavar="NAME"
)]  # fmt: skip


TYPE_OPTIONS = (
    *("dtype", "input_dtype", "weight_dtype", "output_dtype", "group_size", "scale_dtype", "zero_dtype", "group_n"),
    *("layout", "accumulate"),
)
RUN_OPTIONS = ("library", "l2", "clock", "quantize_from", "correction")
"""Fields of `GemmOptions`, and columns of files of shapes."""


@dataclass(frozen=True)
class GemmOptions:
    """Types of a GEMM, whose kernels run it and how, and what of a chip may be used."""

    dtype: DtypeOption = None
    input_dtype: Annotated[
        str | None, option("Type of A; wins over --dtype.", panel=_TYPES, complete=complete_types)
    ] = None
    weight_dtype: Annotated[str | None, option(
        "Type of B as stored; narrower than A: quantized weights.", panel=_TYPES, complete=complete_types
    )] = None  # fmt: skip
    output_dtype: Annotated[str | None, option("Type of C as stored.", panel=_TYPES, complete=complete_types)] = None
    group_size: Annotated[int | None, option(
        "Quantized weights, and fp8 or fp4 in A and B: elements along K that share a scale; -1: one scale per "
        "column (A and B: none).", panel=_TYPES
    )] = None  # fmt: skip
    zero_dtype: Annotated[
        str | None, option("Quantized weights: type of the zero points. Default: none, symmetric.", panel=_TYPES)
    ] = None
    scale_dtype: Annotated[str | None, option(
        "Type of the scales: fp32, fp16, bf16, fp8 (e4m3) or e8m0. Default: that of the usual formats.",
        panel=_TYPES
    )] = None  # fmt: skip
    group_n: Annotated[
        int | None, option("Columns of B that share a scale. Default: 1.", "--group-n", panel=_TYPES)
    ] = None
    layout: Annotated[str | None, option(
        "Layout of A and B in memory: tn (default; K runs along both), nn (N along B), nt (and M along A) or tt.",
        panel=_TYPES
    )] = None  # fmt: skip
    accumulate: Annotated[
        str | None, option("fp8 on Hopper: fast (default), or full: products are added in fp32.", panel=_TYPES)
    ] = None
    library: Annotated[str | None, option(_LIBRARY_HELP, panel=_GPU)] = None
    l2: L2Option = None
    clock: ClockOption = None
    quantize_from: Annotated[str | None, option(
        "Type of A before it is quantized to that of the GEMM: bf16, fp16 or fp32. Default: A "
        "is quantized already.", panel=_GPU
    )] = None  # fmt: skip
    correction: CorrectionOption = None
    idle_cores: IdleCoresOption = True
    policy: PolicyOption = None

    @property
    def types(self) -> dict[str, Any]:
        """The data types, by the names of `make_problem`."""
        return {name: getattr(self, name) for name in TYPE_OPTIONS}

    @property
    def run(self) -> dict[str, Any]:
        """Options on kernels, by the names of `GEMMEvaluator.evaluate`."""
        return {name: getattr(self, name) for name in RUN_OPTIONS}

    def check_library(self) -> None:
        """Refuse a library whose kernels are not of plain GEMMs."""
        from gemm_eval.models.gpu import check_plain_library

        if self.library is not None:
            check_plain_library(self.library)

    def evaluator(self, arch: str) -> GEMMEvaluator:
        """Return the evaluator of an arch."""
        from gemm_eval.evaluate import GEMMEvaluator

        return GEMMEvaluator(arch, allow_idle_cores=self.idle_cores, policy=self.policy)

    def problem(self, arch: ArchSpec, sizes: Sequence[Any], row_groups: tuple[int, ...] | None = None) -> GemmProblem:
        """Return the GEMM of these sizes, G, M, K, N, with the types asked for, or those of the arch."""
        from gemm_eval.workload import make_problem

        return make_problem(*sizes, default_dtype=arch.default_dtype, row_groups=row_groups, **self.types)


@dataclass(frozen=True)
class ModelRun:
    """Options on the kernels that run the GEMMs of a model."""

    library: ModelLibraryOption = None
    l2: L2Option = None
    clock: ClockOption = None
    correction: CorrectionOption = None

    def evaluator(self, arch: str, **more: Any) -> GEMMEvaluator:
        """Return the evaluator of an arch, with these as its defaults."""
        from gemm_eval.evaluate import GEMMEvaluator

        return GEMMEvaluator(arch, **{field.name: getattr(self, field.name) for field in fields(ModelRun)}, **more)


@dataclass(frozen=True)
class ModelRunOnChip(ModelRun):
    """The same, and what of a multi-core chip may be used."""

    idle_cores: IdleCoresOption = True
    policy: PolicyOption = None

    def evaluator(self, arch: str, **more: Any) -> GEMMEvaluator:
        """Return the evaluator of an arch, with these as its defaults."""
        return super().evaluator(arch, allow_idle_cores=self.idle_cores, policy=self.policy, **more)


MappingOption = Annotated[str | None, option(
    "Cost this mapping instead of searching. Tiles are in elements, order is the tile loops from the "
    f"outermost: {MAPPING_FORM}. On a GPU: {GPU_MAPPING_FORM}."
)]  # fmt: skip
ExplainOption = Annotated[bool | None, option(
    "Explain in words the bound of the GEMM and the most useful changes. Default: yes in text, no with --json.",
    "--explain/--no-explain"
)]  # fmt: skip


# Where answers go.

JsonOption = Annotated[bool, option("Print one JSON document on stdout instead of tables.", "--json")]
OutOption = Annotated[Path | None, option(
    "Write the results to this .csv or .parquet file instead of printing them: a row each, all columns. Times "
    "are in us. Parquet needs the extra sweep.", "--out", metavar="FILE"
)]  # fmt: skip


@dataclass(frozen=True)
class Output:
    """The place where results go: a table in a file, stdout as JSON, or stdout for people to read."""

    out: OutOption = None
    json: JsonOption = False

    def __post_init__(self) -> None:
        if self.out is not None:
            from gemm_eval.cli.output import check_file

            check_file("--out", self.out)

    def give(
        self, rows: Callable[[], Iterable[Mapping[str, Any]]], document: Callable[[], Any], show: Callable[[], None]
    ) -> None:
        """Write the rows, print the document, or show, whichever is asked for."""
        if self.out is None:
            give(self.json, document, show)
        else:
            from gemm_eval.cli.output import write_records

            write_records(self.out, list(rows()), json=self.json)


def give(is_json: bool, document: Callable[[], Any], show: Callable[[], None]) -> None:
    """Print the document as JSON, or show it to people."""
    if is_json:
        from gemm_eval.cli.output import print_json

        print_json(document())
    else:
        show()


def one_or_all(documents: Sequence[Any]) -> Any:
    """Return the document of a command that was asked one thing, or a list of several."""
    return documents[0] if len(documents) == 1 else documents


# Sizes of a GEMM: in a row, always in the order G M K N, or by name.

_MEANINGS = {
    "G": "batch: number of independent products",
    "M": "rows of A and C",
    "K": "reduction length: columns of A, rows of B",
    "N": "columns of B and C",
}


def _size_params(
    order: str, more: str = "", more_of_each: str = ""
) -> tuple[Callable[..., Sizes], list[inspect.Parameter]]:
    """Return what makes `Sizes` of words, and the parameters that take them: in a row, and each by name.

    The help of the row ends with `more`, that of each name with `more_of_each`.
    """

    def sentence(letters: Sequence[str], end: str, more: str) -> str:
        text = "; ".join(_MEANINGS[letter] for letter in letters)
        return f"{text[0].upper()}{text[1:]}{end} {more}".rstrip()

    in_a_row = argument(sentence(order.split(), f"; in elements. Or by name: {names_of_sizes(order)}.", more), order)
    params = [_param("sizes", Annotated[list[str] | None, in_a_row])]
    for letter in order.split():
        text = sentence([letter], ". Default: 1." if letter == "G" else ".", more_of_each)
        by_name = option(text, f"--{letter.lower()}", f"-{letter.lower()}", metavar="SIZE", panel=_SIZES)
        params.append(_param(letter.lower(), Annotated[str | None, by_name]))
    return partial(Sizes.of_words, order), params


BatchedSizes = Annotated[Sizes, "G M K N"]
SeveralSizes = Annotated[Sizes, "G M K N", SEVERAL, SEVERAL]
PlainSizes = Annotated[Sizes, "M K N"]
KernelSizes = Annotated[Sizes, "M K N", "Lists the kernels for these sizes; K and N are multiples of 8."]
WeightSizes = Annotated[Sizes, "K N"]


# Models.

ModelArgument = Annotated[
    str, argument("Preset name, or a Hugging Face config.json or a folder with one.", "MODEL", complete=complete_models)
]


def _list_names(is_asked: bool) -> None:
    if not is_asked:
        return
    from gemm_eval.cli.output import print_line
    from gemm_eval.estimate import list_engines
    from gemm_eval.models.gpu import LIBRARIES
    from gemm_eval.transformer import list_models

    types = _types(has_schemes=True)
    names = {"models": list_models(), "engines": list_engines(), "types": types, "libraries of GEMMs": LIBRARIES}
    for kind, of_kind in names.items():
        print_line(f"{kind}: {', '.join(of_kind)}")
    raise typer.Exit


_NAMES = "shows_names"
NamesOption = Annotated[bool, option(
    "List the names of models, engines, types and libraries, and exit.", "--list", callback=_list_names, is_eager=True
)]  # fmt: skip
DenseDtypeOption = Annotated[str | None, option(
    "Type of unquantized parts: scores and values of attention, KV cache, routers, LM head. Default: the "
    "input type of --dtype, or bf16 where that has fewer than 16 bits (fp16 on an arch without bf16).",
    complete=complete_types
)]  # fmt: skip
KvDtypeOption = Annotated[str | None, option(
    "Type of the KV cache. Default: that of the checkpoint if it names one, else --dense-dtype.",
    complete=complete_types
)]  # fmt: skip
MemoryFracOption = Annotated[float | None, option(
    "Share of a GPU's memory for the model, as defined by the engine's flag. Default: the engine's; 0.9.",
    show_default=False
)]  # fmt: skip
IgnoreMemoryOption = Annotated[
    bool, option("Continue if the model is larger than the DRAM of a GPU.", "--ignore-memory")
]


Phase = Literal["prefill", "decode", "both"]
"""Forward passes of inference."""

Pass = Literal["prefill", "decode", "train", "both"]
"""Passes that GEMMs are listed for: a phase of inference, both, or a microbatch of training."""


def phases_of(choice: Pass) -> tuple[Any, ...]:
    """Return the phases that a word stands for."""
    return ("prefill", "decode") if choice == "both" else (choice,)


@dataclass(frozen=True)
class ModelTypes:
    """Types of the GEMMs of a model, and the load of its experts."""

    dtype: Annotated[str | None, option(
        "Types of projections, feed-forward networks and experts: bf16, fp8, w4a16, ... Default: from the "
        "model's file, else the default type of the arch.", complete=complete_schemes
    )] = None  # fmt: skip
    dense_dtype: DenseDtypeOption = None
    expert_dtype: Annotated[str | None, option(
        "Types of routed experts alone, such as w4a16_mxfp4 for gpt-oss. Default: those of --dtype.",
        complete=complete_schemes
    )] = None  # fmt: skip
    expert_load: Annotated[str, option(
        "Rows of each expert: uniform: expected rows of random routing; balanced or "
        "power_law_ALPHA: rows of the most loaded device in a seeded draw; expected: equal "
        "rows for all active experts.", metavar="WORD"
    )] = "uniform"  # fmt: skip


@dataclass(frozen=True)
class MemoryOptions:
    """The share of a device's memory that a model may take, and whether it is shown."""

    show_memory: Annotated[
        bool, option("Also show the memory of a device, part by part, and the largest batch.", "--memory")
    ] = False
    memory_frac: MemoryFracOption = None
    ignore_memory: IgnoreMemoryOption = False
