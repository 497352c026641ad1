"""The registry of predicted subjects, and `validate NAME` and `calibrate NAME`, which are made of it.

A subject's own code is a module of `gemm_eval.validation.subjects`. Nothing heavy is imported here at the top: a shell
waits for completions.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gemm_eval.cli import options as opt
from gemm_eval.progress import progress_status

if TYPE_CHECKING:
    from gemm_eval.validation.subjects import Fitted


Option = inspect.Parameter
"""An option of a command, or its argument, as typer reads it."""


def option(
    name: str, text: str, kind: Any = str, default: Any = None, *flags: str, complete: Any = None, **settings: Any
) -> Option:
    """Return an option by its function's parameter, help, type and default (`...`: it must be given).

    `flags` are its names on the command line where that is not the parameter's with hyphens.
    """
    made = opt.option(text, *flags, complete=complete, show_default=default not in (None, ...), **settings)
    return _parameter(name, kind, default, made)


def _parameter(name: str, kind: Any, default: Any, made: Any) -> Option:
    given = Option.empty if default is ... else default
    return Option(name, Option.KEYWORD_ONLY, default=given, annotation=Annotated[kind, made])


class Command(NamedTuple):
    """A command on a subject.

    Attributes:
        function: ``module.name`` in `gemm_eval.validation.subjects`. It takes the options that it has parameters for.
            Of `validate` it returns an `Exam`, or a `Report` of its own; of `calibrate` it yields `Fitted` values.
        options: in the order of the help.
        title: first sentence of the help.
        more: the rest of it.
        examples: what stands after ``gemm-eval``.
    """

    function: str
    options: tuple[Option, ...]
    title: str
    more: str = ""
    examples: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """The whole help, paragraph by paragraph."""
        examples = [f"gemm-eval {words}" for words in self.examples]
        return "\n\n".join(filter(None, (self.title, self.more, "Examples:", *examples)))

    def run(self, given: Mapping[str, Any]) -> Any:
        """Call the function; GemmEvalError: a package of the extra is missing, or any error of the function."""
        module, _, name = self.function.partition(".")
        function = getattr(import_module(f"gemm_eval.validation.subjects.{module}"), name)
        taken = inspect.signature(function).parameters
        return function(**{name: value for name, value in given.items() if name in taken})


_Texts, _Files, _File = list[str] | None, list[Path] | None, Path | None


def _presets(words: str, complete: Any = opt.complete_measured_gpus) -> Option:
    return _parameter("names", list[str], ..., opt.argument(f"{words}, or all.", "NAME...", complete=complete))


def _names(name: str, text: str, *flags: str, metavar: str = "NAME") -> Option:
    return option(name, text, _Texts, None, *flags, metavar=metavar)


def _archs(words: str) -> Option:
    return _names("names", f"GPU presets with {words}. Repeatable. Default: all.", "--arch")


def _flag(name: str, text: str, flag: str = "") -> Option:
    return option(name, text, bool, False, flag or f"--{name}")


def _seed(words: str) -> Option:
    return option("seed", f"Seed that {words}.", int, 0, min=0)


def _worst(words: str) -> Option:
    return option("worst", f"Number of the {words} to print.", int, 5, min=0)


def _dense_data(default: str) -> Option:
    text = (
        "Timings: a .csv or .parquet file, or the name of a committed set or folder, such as aiconfigurator/float16. "
        f"Repeatable. Default: {default}."
    )
    return _names("data", text, metavar="FILE|NAME")


def _w4a16_data(default: str) -> Option:
    text = f"Tables of gemm-eval measure --kernel w4a16. Repeatable. Default: {default}."
    return option("data", text, _Files, metavar="FILE")


def _library(words: str, default: str) -> Option:
    return option("library", f"Kernel library: {words}.", str, default, metavar="WORD")


def _family(words: str, kind: Any = str, default: Any = ...) -> Option:
    return option("family", f"Kernel family whose {words}.", kind, default)


def _arch(text: str = "GPU preset or YAML file.", default: Any = ..., complete: Any = opt.complete_gpus) -> Option:
    return option("arch", text, str, default, metavar="NAME|FILE", complete=complete)


_GPU, _H200 = _arch(), _arch(default="h200-sxm")
_FOLDS = option("folds", "Folds of the cross-validation, by (N, K) pair: at most as many as pairs.", int, 5, min=2)
_PAIRS = _seed("assigns (N, K) pairs to folds")
_HEADS = _seed("assigns heads to folds")
_LOADS = _seed("draws loads of experts, and the rows of fits")
_REFIT = option(
    "refit", "Fit the model on the held-in rows, or score the committed calibration. Default: fit with a calibration; "
    "elsewhere score the coefficients that carry over.", bool | None, None, "--refit/--no-fit",
)  # fmt: skip
_DTYPE = option("dtype", "Types of a file without these columns: fp16, w4a16, ...", str | None)
_TRITON_DATA = option(
    "data", "A table that measure_triton.py of examples/ wrote. Default: the package's.", _File, metavar="FILE"
)
_CHIP_DATA = option(
    "data", "CSV of timings: chip, dtype, M, K, N, latency_us. Default: the package's.", _File, metavar="FILE"
)
_OUT = option("out", "File to write. Default: the file in arch/calibration of a checkout.", _File, metavar="FILE")

VALIDATE = {
    "dense": Command(
        "gemms.validate_dense",
        (
            _H200, _dense_data("all that is committed for the arch"), _FOLDS, _PAIRS, _REFIT,
            _worst("worst (N, K) pairs"),
            option("library", "Kernel library of a file without that column: cublas, trtllm.", str | None),
            _DTYPE,
        ),
        "Score the model of cuBLAS kernels, and of TensorRT-LLM's for narrow weights: one time a GEMM.",
        "Baselines on the same rows: the roofline of the data sheet, a roofline with fitted constants, and "
        "nvMatmulHeuristics where it is installed. Regimes: decode M <= 16, mid M <= 256, prefill above. On a GPU "
        "without its own calibration nothing is fitted: the model and the fitted roofline carry over.",
        ("validate dense --arch h200-sxm", "validate dense --arch h200-sxm --worst 10"),
    ),
    "gpu": Command(
        "gemms.validate_gpu", (_presets("GPU presets with timings"), _FOLDS, _PAIRS),
        "Score GPUs, types and regimes in one table, all held out by (N, K); takes minutes.",
        "A fitted roofline and a table of the same rows, interpolated, stand beside the model and its learned "
        "correction. Sets of few rows are left out. GPUs whose coefficients carry over from another one stand apart.",
        ("validate gpu h200-sxm l40s",),
    ),
    "moe": Command(
        "experts.exam",
        (
            _presets("GPU presets with measured layers"),
            _names("data", "Tables, such as triton-bf16 or grouped/bf16. Repeatable. Default: each."),
            _flag("groups", "Also a line for each model that was held out.", "--models"), _LOADS,
        ),
        "Score layers of experts and grouped GEMMs, each model by a fit on the others; takes minutes.",
        "A roofline with fitted constants stands beside the model. Regimes: tokens of the layer, decode <= 16, mid <= "
        "256, prefill above.",
        ("validate moe h200-sxm",),
    ),
    "attention": Command(
        "attention.exam",
        (
            _presets("GPU presets with measured attention"),
            _names("phase", "context, generation, mla_context or mla_generation. Repeatable. Default: each."),
            _flag("groups", "Also by size, by types, and with windows."), _HEADS,
        ),
        "Score attention, each row by a fit on other heads: of (query heads, KV heads, head_dim), of MLA the number.",
        "A roofline from the data sheet and one with fitted constants stand beside the model. Takes two minutes for "
        "all.",
        ("validate attention all --groups",),
    ),
    "collective": Command(
        "collective.exam",
        (
            _archs("measured collectives"),
            option("hold_out", "blocks: as many ranks and sizes of one decade; ranks: all rows of as many ranks.",
                   str, "blocks", metavar="WORD"),
            _flag("groups", "Also by size and by ranks."),
        ),
        "Score collectives between the GPUs of a node, each block of sizes and ranks by a fit on the others.",
        "The rate of the link, latency and rate fitted (alpha-beta), and a table interpolated stand beside the model. "
        "Takes a minute for all.",
        ("validate collective --arch h200-sxm",),
    ),
    "memory-bound": Command(
        "memory_bound.exam", (_archs("measured kernels"), _flag("groups", "Also by number of rows.")),
        "Score memory-bound kernels, such as norms, each width of rows by a fit on the others.",
        "The rate of the data sheet, overhead and rate fitted for each kernel, and a table interpolated stand beside "
        "the model. Takes seconds.",
        ("validate memory-bound --arch h200-sxm --groups",),
    ),
    "mixers": Command(
        "mixers.exam",
        (_archs("measured kernels of linear and sparse attention"), _flag("groups", "Also each kernel by itself.")),
        "Score kernels of linear attention (Gated DeltaNet, Kimi Delta Attention) and of sparse attention (DSA): "
        "convolutions, chunked scans, updates of states, indexer, top-k, chosen latents.",
        "Each row by a fit on other heads; kernels that were timed with one number of heads: on other batches.",
        ("validate mixers --arch h200-sxm --groups",),
    ),
    "stacks": Command(
        "stacks.validate", (_archs("measured stacks"), _flag("operations", "Also each operation of each step.")),
        "Compare whole steps of stacks of layers, prompts and decode, with timings, and their memory.",
        "Llama-3-8B- and Qwen3-30B-A3B-shaped layers in torch, in bf16 and W4A16. Takes seconds.",
        ("validate stacks --operations",),
    ),
    "served": Command(
        "served.validate",
        (
            _archs("served runs"),
            _names("engines", "Engines: vllm, sglang, trtllm. Repeatable. Default: each.", "--engine"),
            _flag("fits", "Also score the runs that host times were fitted on."),
            option(
                "data", "CSV of your own runs: gpu, engine, model, prompt_len, output_len, concurrency, ttft_us, "
                "tpot_us; tp, ep, groups, dtype, kv_dtype where they are not 1 or the checkpoint's.", _File,
                metavar="FILE",
            ),
        ),
        "Score TPOT and TTFT of models on servers: vLLM, SGLang and TensorRT-LLM, as clients measured them.",
        "Runs of NVIDIA of DeepSeek-R1, Llama-3.1-70B and Qwen3-32B on H100, H200 and B200, aggregated serving. Takes "
        "a minute.",
        ("validate served", "validate served --engine vllm --arch h200-sxm", "validate served --data runs.csv"),
    ),
    "training": Command(
        "stacks.validate_training", (),
        "Compare published training steps with ours: tokens a second, MFU, and where the time goes.",
        "Tables of Megatron Bridge and NeMo, the reports on Llama 3 and DeepSeek-V3; nothing is fitted on them.",
        ("validate training",),
    ),
    "w4a16": Command(
        "w4a16.validate",
        (
            _H200, _w4a16_data("the package's"), _FOLDS, _PAIRS, _REFIT,
            _flag("ablation", "Also print the error without each term of the model; takes minutes."),
            _worst("largest errors near the best"),
        ),
        "Score the model of our W4A16 kernels, config by config, and the choice among the configs of a GEMM.",
        "The choice is judged by its regret: the time of the chosen config over the best timed one, for the model, "
        "for other rules, and for timing a few of the model's first. TensorRT-LLM's public timings follow.",
        ("validate w4a16 --worst 10", "validate w4a16 --ablation"),
    ),
    "multicore": Command(
        "chips.validate",
        (
            _presets("Multi-core chips with timings", opt.complete_measured_chips),
            _CHIP_DATA, _FOLDS, _PAIRS, option(
                "refit", "Fit on the held-in rows, or score the committed calibration.", bool, True,
                "--refit/--no-fit",
            ),
        ),
        "Score multi-core chips, held out by (N, K), beside the roofline of the data sheet and a fitted one.",
        examples=("validate multicore all", "validate multicore tpu-v4 --data timings.csv"),
    ),
    "triton": Command(
        "triton.validate",
        (_H200, _TRITON_DATA, _FOLDS, _PAIRS, _REFIT, _worst("slowest first choices")),
        "Score the model of Triton kernels, config by config, and the choice among the configs of a GEMM.",
        examples=("validate triton --arch h200-sxm --worst 10",),
    ),
}  # fmt: skip
"""The subjects that timings judge, in the order of help."""

CALIBRATE = {
    "dense": Command(
        "gemms.calibrate_dense",
        (
            _GPU, _family("coefficients are fitted, such as sm90_wgmma"),
            _library("cublas, trtllm, aiter, hipblaslt", "cublas"),
            _dense_data("all committed sets of the library on this GPU with cold L2 and burst clock"),
            _DTYPE, _PAIRS, option("max_evaluations", "Rounds of search and fit.", int | None, min=1), _OUT,
            _flag("correction", "Then fit its corrections too, as `calibrate correction` does."),
        ),
        "Fit a kernel family of cuBLAS, or of TensorRT-LLM for narrow weights.",
        "Rows that the library runs with another family, and rows of rough bands, are left out.",
        (
            "calibrate dense --arch h200-sxm --family sm90_wgmma",
            "calibrate dense --arch l4 --family sm80_mma --data timings.csv --dtype fp16 --out l4.yaml",
        ),
    ),
    "correction": Command(
        "corrections.calibrate",
        (
            _GPU,
            option(
                "subject", "Subject to correct: dense (GEMMs), attention, collective, memory-bound, moe, triton or "
                "multicore. --family and --library are of dense alone; --data of it, or a file of a chip or of "
                "Triton's kernels.", str, "dense", metavar="WORD",
            ),
            _family("answers are corrected, such as sm90_wgmma", kind=str | None, default=None),
            _library("cublas, trtllm, aiter, hipblaslt", "cublas"),
            _dense_data(
                "all committed sets of the library on this GPU, and those held back that say is_corrected"
            ),
            _PAIRS, option(
                "out_folder", "Folder to write. Default: arch/calibration of a checkout.", _File, None, "--out",
                metavar="DIR",
            ),
        ),
        "Learn corrections of a kernel family, or of a subject, from timings.",
        "GEMMs have a correction for each set of types, L2 and clock state. A correction that is not better than the "
        "model alone on held-out rows (GEMMs: in every regime of M) is written as off. Needs scikit-learn.",
        (
            "calibrate correction --arch h200-sxm --family sm90_wgmma",
            "calibrate correction --arch h200-sxm --subject attention",
        ),
    ),
    "intervals": Command(
        "gemms.calibrate_intervals",
        (_GPU, option("family", "Kernel family, such as sm90_wgmma. Default: all.", str | None), _PAIRS),
        "Fit the 80% intervals of the corrections of a GPU again, on the sets of `calibrate correction`; takes a "
        "minute.",
        "Coefficients and corrections stay as they are: for what these intervals hold, corrections are learned on "
        "four fifths of the (N, K) pairs at a time. Needs scikit-learn.",
        ("calibrate intervals --arch h200-sxm",),
    ),
    "quantization": Command(
        "gemms.calibrate_quantization", (_GPU, _dense_data("all that is committed for the arch"), _PAIRS, _OUT),
        "Fit the kernels that quantize A by one scale, on timings of them alone (column quant_us).",
        examples=("calibrate quantization --arch b200",),
    ),
    "moe": Command(
        "experts.calibrate",
        (
            _GPU, option("data", "Committed table, such as triton-bf16 or grouped/bf16.", str, ..., metavar="NAME"),
            _LOADS, _OUT,
        ),
        "Fit a family of grouped kernels on measured layers of experts, or on grouped GEMMs; whole models are held "
        "out.",
        examples=("calibrate moe --arch h200-sxm --data triton-bf16",),
    ),
    "attention": Command(
        "attention.calibrate", (_GPU, _library("trtllm, cudnn, flash or flashinfer", "trtllm"), _HEADS, _OUT),
        "Fit a library's families of attention kernels on committed tables; heads are held out for the errors.",
        examples=("calibrate attention --arch h200-sxm",),
    ),
    "collective": Command(
        "collective.calibrate", (_GPU, _OUT),
        "Fit collectives between the GPUs of a node on committed tables; blocks of sizes and ranks are held out.",
        examples=("calibrate collective --arch h200-sxm",),
    ),
    "memory-bound": Command(
        "memory_bound.calibrate", (_GPU, _library("engines or torch", "engines"), _OUT),
        "Fit memory-bound kernels, such as norms, on committed tables; widths are held out.",
        examples=("calibrate memory-bound --arch h200-sxm",),
    ),
    "mixers": Command(
        "mixers.calibrate", (_GPU, _library("vllm, sglang or trtllm", "vllm"), _OUT),
        "Fit a library's kernels of linear and sparse attention on committed tables.",
        examples=("calibrate mixers --arch h200-sxm --library vllm",),
    ),
    "served": Command(
        "served.calibrate", (_OUT,),
        "Fit the host times of engines on half of the served runs, and without each (model, GPU); takes a minute.",
        examples=("calibrate served",),
    ),
    "w4a16": Command(
        "w4a16.calibrate",
        (
            _GPU, _family("coefficients are fitted, such as w4a16_sm90"),
            _w4a16_data("the package's, without those held back"), _PAIRS, _OUT,
        ),
        "Fit a family of our W4A16 kernels, each row at the config that ran.",
        examples=("calibrate w4a16 --arch h200-sxm --family w4a16_sm90",),
    ),
    "multicore": Command(
        "chips.calibrate",
        (
            _arch("Multi-core preset or YAML file.", complete=opt.complete_multicore), _CHIP_DATA,
            _names(
                "fit", "Field to fit, such as launch_us, or in a table load_clock_frac.bf16 (.* all types). "
                "Repeatable. Default: the coefficients that the YAML of the chip names.", metavar="PATH",
            ),
            _FOLDS, _PAIRS, _OUT,
        ),
        "Fit launch, clock, bandwidths and overlap of a multi-core chip on timings.",
        "They replace numbers of the chip's YAML when it is loaded; answers then have source: calibrated.",
        ("calibrate multicore --arch tpu-v5e --out tpu-v5e.yaml",),
    ),
    "triton": Command(
        "triton.calibrate", (_GPU, _TRITON_DATA, _PAIRS, _OUT),
        "Fit the model of Triton kernels, each row at the config that ran.",
        examples=("calibrate triton --arch h200-sxm",),
    ),
}  # fmt: skip
"""The subjects that are fitted on timings, in the order of help."""


validate = opt.group(
    "Compare predicted with measured latencies of GEMMs, operations, whole models and servers.\n\n"
    "A model is judged on rows that were held out of its fit, by (N, K) pair."
)
calibrate = opt.group(
    "Fit the few coefficients of a kernel family, or of Triton kernels, on timings, and write them.\n\n"
    "The file also has the hashes of the data, the date, the errors on held-out (N, K) pairs, and the versions."
)
_JSON = _flag("json", "Print one JSON document on stdout instead of tables.")


def _add(group: typer.Typer, name: str, command: Command, body: Callable[..., None], *more: Option) -> None:
    """Make a command whose options are those of a subject."""
    params = (*command.options, *more)

    def run(**given: Any) -> None:
        body(command, **given)

    run.__doc__, run.__annotations__ = command.help, {param.name: param.annotation for param in params}
    run.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    opt.command(group, name, needs_words=any(param.default is Option.empty for param in params))(run)


def _validate(command: Command, *, json: bool, **given: Any) -> None:
    from gemm_eval.cli.output import make_console, print_json

    with progress_status("validate"):
        result = command.run(given)
        from gemm_eval.validation.subjects import Report, exam_report

        report = result if isinstance(result, Report) else exam_report(result, **given)
        answer = report.document() if json else list(report.parts())
    if json:
        print_json(answer)
        return
    console = make_console()
    for part in answer:
        console.print(part)


def _calibrate(command: Command, **given: Any) -> None:
    from gemm_eval.cli.output import make_console

    console = make_console()
    results: Iterable[Fitted] = command.run(given)
    iterator = iter(results)
    while True:
        with progress_status("calibrate"):
            item = next(iterator, None)
        if item is None:
            break
        path = given.get("out") or item.path
        if path is not None and item.path is not None:
            path = given["out_folder"] / item.path.name if given.get("out_folder") else path
            path.parent.mkdir(parents=True, exist_ok=True)
            item.write(path)
        for part in item.parts:
            console.print(part, soft_wrap=isinstance(part, str))
        if item.path is not None:
            console.print(f"written to {path}", soft_wrap=True)


for _name, _command in VALIDATE.items():
    _add(validate, _name, _command, _validate, _JSON)
for _name, _command in CALIBRATE.items():
    _add(calibrate, _name, _command, _calibrate)
