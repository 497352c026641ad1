"""`prune_inductor`: within it torch.compile's max-autotune benchmarks only what the model finds worth it."""

from __future__ import annotations

import copy
import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton import gpu_spec, num_kept
from gemm_eval.extras import needs_extra
from gemm_eval.models.gpu.triton import TritonConfig, triton_coefficients
from gemm_eval.torch.inductor_ranking import (
    GROUPED_TEMPLATES,
    KernelTraits,
    Library,
    LibraryTime,
    config_of,
    gemm_of,
    graph_times_us,
    grouped_gemm_of,
    has_epilogue,
    rank_times,
    traits_of,
)
from gemm_eval.torch.inductor_report import PrunedGemm, PrunedTemplate, PruneReport, RankedConfig, time_in_graphs
from gemm_eval.version import __version__
from gemm_eval.workload import GemmProblem

_HOOK = "_finalize_template_configs"
_HOOK_ARGUMENTS = ["self", "template_choices", "kernel_inputs", "templates", "op_name"]
_CHOICE_ARGUMENTS = ["self", "template", "params", "extra_kwargs", "layout", "inputs"]
_LIBRARY_OPS = ("mm", "addmm", "bmm", "baddbmm")
_ADDING_OPS = ("addmm", "baddbmm")
_LIBRARY_KERNELS = (*_LIBRARY_OPS, "bias_addmm")
_INPUTS = ("nodes", "mat1mat2", "mnk_hinted", "shapes_hinted", "strides_hinted", "output_layout")


def missing_interface() -> str | None:
    """Return what this torch lacks of the interface that is known, or None."""
    try:
        from torch._inductor import select_algorithm
        from torch._inductor.choices import InductorChoices
        from torch._inductor.kernel_inputs import MMKernelInputs
        from torch._inductor.kernel_template_choice import KernelTemplateChoice
        from torch._inductor.virtualized import V
    except ImportError as error:
        return str(error)
    hook = getattr(InductorChoices, _HOOK, None)
    if hook is None:
        return f"InductorChoices has no {_HOOK}"
    for what, function, expected in (
        (_HOOK, hook, _HOOK_ARGUMENTS),
        ("KernelTemplateChoice", KernelTemplateChoice.__init__, _CHOICE_ARGUMENTS),
    ):
        result = list(inspect.signature(function).parameters)
        if result[: len(expected)] != expected:
            return f"{what} takes {', '.join(result[1:])}"
    lacking = [name for name in _INPUTS if not hasattr(MMKernelInputs, name)]
    lacking += [
        name for name in ("get_algorithm_selector_cache", "ExternKernelChoice") if not hasattr(select_algorithm, name)
    ]
    lacking += [] if hasattr(V, "set_choices_handler") else ["V.set_choices_handler"]
    return f"it has no {', '.join(lacking)}" if lacking else None


class Pruning:
    """Prunes candidates for one GPU; its methods are what Inductor calls.

    `top_k` of a template's candidates stay: a count, or a share. `drop_slower`: candidates go that a library's kernel
    surely beats.
    """

    def __init__(self, arch: GpuSpec, top_k: int | float, report: PruneReport, drop_slower: bool = True) -> None:
        self.arch, self.top_k, self.report = arch, top_k, report
        self.library = Library(arch) if drop_slower else None
        # kernels of libraries for a node, by a call before that of templates
        self._libraries: tuple[Any, int] = None, 0

    def key(self) -> tuple[str, ...]:
        """Return the facts that answers depend on, for the keys of Inductor's caches."""
        text = f"{self.arch.model_dump_json()}{sorted(triton_coefficients(self.arch)[0].items())}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        return "gemm_eval.prune_inductor", __version__, repr(self.top_k), repr(self.library is not None), digest

    def template_choices(self, choices: list[Any], inputs: Any, op_name: str) -> list[Any]:
        """Return the candidates of one GEMM that stay, in their order: `KernelTemplateChoice`s."""
        if not self.report.is_active or inputs.device_type != "cuda":
            return choices
        try:
            return self._template_choices(choices, inputs, op_name)
        except Exception as error:  # whatever an unknown torch raises: a compilation must not end here
            return self._give_up(op_name, error, choices)

    def callers(self, choices: list[Any]) -> list[Any]:
        """Return the candidates of a grouped GEMM that stay, and all of other operations: `ChoiceCaller`s.

        Those of dense ones, which were pruned before, are timed as CUDA graphs from here on.
        """
        if not self.report.is_active or not _is_ours(self):
            return choices
        try:
            if any(map(_is_grouped, choices)):
                return self._callers(choices)
            if any(choice.name in _LIBRARY_KERNELS for choice in choices):
                time_in_graphs(choices)
        except Exception as error:  # as above
            return self._give_up("grouped_mm" if any(map(_is_grouped, choices)) else "GEMM", error, choices)
        return choices

    def _template_choices(self, choices: list[Any], inputs: Any, op_name: str) -> list[Any]:
        from torch._inductor.kernel_inputs import MMKernelInputs
        from torch._inductor.select_algorithm import ExternKernelChoice
        from torch._inductor.virtualized import V

        if not isinstance(inputs, MMKernelInputs):  # of convolutions, and what else comes to have templates
            return choices
        by_template: dict[tuple[str, Any], list[int]] = {}
        values: dict[int, dict[str, Any]] = {}
        for i, choice in enumerate(choices):
            if not isinstance(choice.template, ExternKernelChoice):
                values[i] = {**choice.extra_kwargs, **choice.params.to_kwargs()}
                by_template.setdefault((choice.template.uid, values[i].get("hint_override")), []).append(i)
        node = getattr(V.graph, "current_node", None)  # of torch.fx, which is lowered
        num_extern = len(choices) - len(values)
        if node is not None and node is self._libraries[0]:
            num_extern += self._libraries[1]
        if not by_template:
            self._libraries = node, num_extern
            return choices
        is_tf32 = any(one.get("ALLOW_TF32") for one in values.values())
        problem, a, b = gemm_of(inputs, op_name, is_tf32=is_tf32)
        kept: set[int] = set(range(len(choices))) - values.keys()
        templates = []
        library = self._library_time(inputs, op_name, problem, node) if num_extern else None
        for (name, hint_override), indices in by_template.items():
            configs = [config_of(values[i]) for i in indices]
            traits = traits_of(values[indices[0]], a, b)
            # for other sizes than the hint's the library was not predicted
            template, stay = self._rank(name, problem, configs, traits, None if hint_override else library)
            templates.append(template)
            kept |= {indices[i] for i in stay}
        library_us = None if library is None else library.latency_us
        self.report.add(PrunedGemm(op_name, problem, tuple(templates), num_extern, library_us))
        return [choice for i, choice in enumerate(choices) if i in kept]

    def _library_time(self, inputs: Any, op_name: str, problem: GemmProblem, node: Any) -> LibraryTime | None:
        if self.library is None or op_name not in _LIBRARY_OPS:
            return None
        # a matrix that is added is copied into C first; a bias, whose rows are one and the same, is not
        adds_matrix = op_name in _ADDING_OPS and inputs.strides_hinted()[0][-2:-1] != (0,)
        return self.library.time(problem, has_epilogue=adds_matrix or has_epilogue(node))

    def _callers(self, choices: list[Any]) -> list[Any]:
        grouped = [i for i, choice in enumerate(choices) if _is_grouped(choice)]
        problem, a, b = grouped_gemm_of(choices[grouped[0]], _hints)
        values = [_values_of(choices[i]) for i in grouped]
        is_tma = "USE_TMA_LOAD=True" in str(getattr(choices[grouped[0]], "description", ""))
        traits = traits_of({**values[0], "NUM_SMS": self.arch.num_sms, "USE_TMA_LOAD": is_tma}, a, b)
        configs = [config_of(one, problem.M) for one in values]  # its tiles go down all of M first
        name = _name_of(choices[grouped[0]])
        template, stay = self._rank(name, problem, configs, traits)
        kept = (set(range(len(choices))) - set(grouped)) | {grouped[i] for i in stay}
        self.report.add(PrunedGemm(name.removeprefix("triton_"), problem, (template,), len(choices) - len(grouped)))
        return [choice for i, choice in enumerate(choices) if i in kept]

    def _rank(
        self, name: str, problem: GemmProblem, configs: Sequence[TritonConfig | None], traits: KernelTraits,
        library: LibraryTime | None = None,
    ) -> tuple[PrunedTemplate, list[int]]:  # fmt: skip
        """Rank one template's candidates; return the report of it and the indices of those that stay."""
        count = num_kept(self.top_k, len(configs))
        tiled = [config for config in configs if config is not None]
        if len(tiled) < len(configs):
            stay = list(range(count))
            return PrunedTemplate(name, "order", (), len(configs), count, "it has no tiles of its own"), stay
        times, ranked_by, reason = rank_times(self.arch, problem, tiled, traits)
        order = sorted(range(len(tiled)), key=lambda i: (times[i], i))
        stay = [i for i in order if times[i] < float("inf")][:count]
        if not stay:
            stay = list(range(count))
            reason = "none is expected to launch: the first stay"
        num_first = len(stay)
        graph_us = (
            None if library is None or ranked_by != "model" else graph_times_us(self.arch, problem, tiled, traits)
        )
        if library is not None and graph_us is not None:
            stay = [i for i in stay if not library.beats(graph_us[i])]
        candidates = tuple(
            RankedConfig(one, float(times[i]), i in stay, None if graph_us is None else float(graph_us[i]))
            for i, one in enumerate(tiled)
        )
        num_slower = num_first - len(stay)
        return PrunedTemplate(name, ranked_by, candidates, len(tiled), len(stay), reason, num_slower), stay

    def _give_up(self, op_name: str, error: Exception, choices: list[Any]) -> list[Any]:
        text = f"all candidates of this {op_name} stay, for they cannot be read: {type(error).__name__}: {error}"
        self.report.note(text)
        warnings.warn(text, stacklevel=3)
        return choices


class PruningChoices:
    """Makes the choices handler: for `torch._inductor.config.inductor_choices_class`, which is part of cache keys.

    `make_base` makes the handler that it stands before; None: Inductor's own.
    """

    def __init__(self, pruning: Pruning, make_base: Callable[[], Any] | None) -> None:
        self.pruning, self.make_base = pruning, make_base

    def __call__(self) -> Any:
        """Return a handler for a thread that has none yet."""
        from torch._inductor.choices import InductorChoices

        return self.around(InductorChoices() if self.make_base is None else self.make_base())

    def around(self, base: Any) -> Any:
        """Return a handler that is `base`, but prunes.

        It is a copy, so that what a subclass of Inductor's does otherwise stays as it is; of a handler that prunes
        already, only its base counts.
        """
        base = getattr(base, "gemm_eval_base", base)
        pruning, finalize = self.pruning, getattr(base, _HOOK)
        handler = copy.copy(base)

        def finalize_pruned(
            template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, *args: Any, **kwargs: Any
        ) -> Any:
            result = finalize(template_choices, kernel_inputs, templates, op_name, *args, **kwargs)
            return pruning.template_choices(result, kernel_inputs, op_name)

        base_key = getattr(base, "uuid", lambda: None)()
        vars(handler).update({
            _HOOK: finalize_pruned, "gemm_eval_base": base, "gemm_eval_pruning": pruning,
            "uuid": lambda: (*pruning.key(), base_key),
        })  # fmt: skip
        return handler

    def __deepcopy__(self, memo: Any) -> PruningChoices:
        return self  # configs of Inductor are copied with all they hold

    def __reduce__(self) -> tuple[Any, ...]:
        # torch 2.10 and 2.11 pickle it for the key of a compiled graph, and never load it again
        return PruningChoices, (self.pruning.key(), self.make_base)


def _is_ours(pruning: Pruning) -> bool:
    from torch._inductor.virtualized import V

    return getattr(V.choices, "gemm_eval_pruning", None) is pruning


def _name_of(caller: Any) -> str:
    return str(caller.name).rpartition("_")[0]


def _is_grouped(caller: Any) -> bool:
    return _name_of(caller) in GROUPED_TEMPLATES


def _values_of(caller: Any) -> dict[str, Any]:
    info = caller.info_dict()
    tile = str(info["tile_shape"]).strip("()").split(",")
    m, k, n = (int(size) for size in tile)
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k} | {name: info[name] for name in ("num_warps", "num_stages")}


def _hints(values: Sequence[Any]) -> tuple[int, ...]:
    from torch._inductor.virtualized import V

    sizes = V.graph.sizevars
    find = getattr(sizes, "optimization_hints", None) or sizes.size_hints  # before and since torch 2.12
    return tuple(int(value) for value in find(values))


DEFAULT_TOP_K = 3
"""Candidates of a template that are benchmarked by default, of the 20 to 105 that Inductor has.

The best of the model's first three is 99.3% as fast as the best of all over 730 measured GEMMs (docs/figures.md).
"""


@contextmanager
def prune_inductor(
    top_k: int | float = DEFAULT_TOP_K, arch: GpuSpec | str | None = None, *, drop_slower: bool = True
) -> Iterator[PruneReport]:
    """Let Inductor compile and benchmark only the candidates of GEMMs that the model ranks best.

        with prune_inductor() as pruned:
            compiled = torch.compile(model, mode="max-autotune")
            compiled(x)  # compilation is what must happen within
        print(pruned)

    Of each template the `top_k` best for mm, addmm, bmm, baddbmm, mm_plus_mm, scaled and grouped GEMMs stay; so do all
    kernels of libraries. Inductor chooses among what is left, as ever. Of these, candidates go that cuBLAS surely
    beats: for mm, addmm, bmm and baddbmm in 16 bits on Hopper, whose Triton kernels were timed. With no candidate left
    the library's kernel is taken without any timing, and nothing is fused into it but a bias. What is left is timed in
    CUDA graphs, where this torch lets us. Convolutions and attention are as without. TORCH.md has the rules.

    It holds for the thread that enters it, until it leaves; the innermost counts. Graphs that Inductor has in its cache
    are not compiled anew: they are cached apart for all arguments. It needs torch 2.10 or later; where the
    interface of Inductor is unknown, it warns and leaves Inductor as it is.

    Args:
        top_k: how many candidates of a template stay: a count, or a share of them, rounded down; at least one.
        arch: the GPU: a preset's name, a file, or a spec; None: torch's current one.
        drop_slower: whether candidates go that the library surely beats, down to none.

    Yields:
        What happened to each GEMM.

    Raises:
        InvalidOptionError: `top_k` is out of range, or `arch` is no GPU.
        ArchError: no such preset or file, or none for the GPU that runs.
        GemmEvalError: torch is missing, or `arch` is None, and there is no GPU.
    """
    num_kept(top_k, 1)
    with needs_extra("pruning of Inductor's candidates", "torch"):
        import torch
    spec = gpu_spec(arch)
    report = PruneReport(spec.name, top_k)
    if arch is None:
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        num_sms = int(device.multi_processor_count)
        if num_sms != spec.num_sms:  # a partition of a GPU, or one with fewer
            text = f"{device.name} has {num_sms} SMs, the preset {spec.name} {spec.num_sms}: ranked for {num_sms}"
            report.note(text)
            spec = spec.model_copy(update={"num_sms": num_sms})
    missing = missing_interface()
    if missing is not None:
        text = f"Inductor is left as it is: torch {torch.__version__} has no interface that is known: {missing}"
        report.note(text)
        warnings.warn(text, stacklevel=3)
        yield report
        return
    with ExitStack() as stack:
        _install(stack, Pruning(spec, top_k, report, drop_slower))
        report.is_active = True
        stack.callback(setattr, report, "is_active", False)
        yield report


def _install(stack: ExitStack, pruning: Pruning) -> None:
    """Put it in Inductor's way until `stack` unwinds."""
    from torch._inductor import config, select_algorithm
    from torch._inductor.virtualized import V

    make_base = config.inductor_choices_class
    choices = PruningChoices(pruning, getattr(make_base, "make_base", make_base))
    handler = choices.around(V.choices)
    stack.enter_context(config.patch(inductor_choices_class=choices))
    stack.enter_context(V.set_choices_handler(handler))
    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
    functions.append(pruning.callers)
    stack.callback(lambda: functions.remove(pruning.callers) if pruning.callers in functions else None)
