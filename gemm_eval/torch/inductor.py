"""`prune_inductor`: within it torch.compile's max-autotune benchmarks only what the model finds worth it."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton import dtype_of, gpu_spec, num_kept
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu.triton import TritonConfig, triton_coefficients
from gemm_eval.torch import inductor_ranking as ranking
from gemm_eval.torch.inductor_ranking import KernelTraits, Library, LibraryTime
from gemm_eval.version import __version__
from gemm_eval.words import needs_extra
from gemm_eval.workload import GemmProblem

_HOOK = "_finalize_template_configs"
_HOOK_ARGUMENTS = ["self", "template_choices", "kernel_inputs", "templates", "op_name"]
_CHOICE_ARGUMENTS = ["self", "template", "params", "extra_kwargs", "layout", "inputs"]
_INPUTS = ("nodes", "mat1mat2", "mnk_hinted", "shapes_hinted", "strides_hinted", "output_layout")
_LIBRARY_OPS = ("mm", "addmm", "bmm", "baddbmm")
_GROUPED_TEMPLATES = ("triton_grouped_mm", "triton_scaled_grouped_mm")  # appended without asking a choices handler
_DEFAULT_GROUP_M = 8


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
    choice = KernelTemplateChoice.__init__
    for name, function, expected in (
        (_HOOK, hook, _HOOK_ARGUMENTS), ("KernelTemplateChoice", choice, _CHOICE_ARGUMENTS),
    ):  # fmt: skip
        arguments = list(inspect.signature(function).parameters)
        if arguments[: len(expected)] != expected:
            return f"{name} takes {', '.join(arguments[1:])}"
    needed = (
        *((MMKernelInputs, name) for name in _INPUTS), (select_algorithm, "get_algorithm_selector_cache"),
        (select_algorithm, "ExternKernelChoice"), (V, "set_choices_handler"),
    )  # fmt: skip
    lacking = [name for home, name in needed if not hasattr(home, name)]
    return f"it has no {', '.join(lacking)}" if lacking else None


class _Operand(NamedTuple):
    """A matrix, or a batch of them: sizes and strides in elements, with hints in place of symbols, and torch's type."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any

    @property
    def copy_bytes(self) -> int:
        """The widest piece of a row or column, whichever lies together, that is aligned: 1 to 16."""
        elem_bytes: int = self.dtype.itemsize
        others = [stride for size, stride in zip(self.sizes, self.strides, strict=True) if size > 1 and stride > 1]
        if 1 not in self.strides:
            return elem_bytes
        return math.gcd(ranking.COPY_BYTES, *(stride * elem_bytes for stride in others))


def _dense_gemm(inputs: Any, op_name: str, *, is_tf32: bool) -> tuple[GemmProblem, _Operand, _Operand]:
    """Return the GEMM of an `MMKernelInputs` and its operands; both products of an mm_plus_mm are one of twice K."""
    nodes, sizes, strides = inputs.nodes(), inputs.shapes_hinted(), inputs.strides_hinted()
    places = (next(i for i, node in enumerate(nodes) if node is operand) for operand in inputs.mat1mat2())
    a, b = (_Operand(sizes[i], strides[i], nodes[i].get_dtype()) for i in places)
    M, N, K = inputs.mnk_hinted()
    shape = (math.prod(a.sizes[:-2]), M, 2 * K if op_name == "mm_plus_mm" else K, N)
    return _problem(shape, (a.dtype, b.dtype, inputs.output_layout(flexible=False).dtype), is_tf32), a, b


def _grouped_gemm(choice: Any) -> tuple[GemmProblem, _Operand, _Operand]:
    """Return the GEMM of a caller of a grouped template, its groups as a batch, for rows that are dealt out evenly."""
    a, b = (
        _Operand(_hints(node.get_size()), _hints(node.get_stride()), node.get_dtype())
        for node in choice.input_nodes[:2]
    )
    M, K, N = a.sizes[-2], a.sizes[-1], b.sizes[-1]
    dims = len(a.sizes), len(b.sizes)
    batch = next((operand.sizes[0] for operand in (a, b) if len(operand.sizes) == 3), None)
    G = _hints(choice.input_nodes[-1].get_size())[0] if batch is None else batch  # of the offsets
    M, N, K = (
        math.ceil(size / G) if dims == dealt else size for size, dealt in ((M, (2, 3)), (N, (3, 2)), (K, (2, 2)))
    )
    return _problem((G, M, K, N), (a.dtype, b.dtype, choice.layout.dtype), False), a, b


def _hints(values: Sequence[Any]) -> tuple[int, ...]:
    from torch._inductor.virtualized import V

    sizes = V.graph.sizevars
    find = getattr(sizes, "optimization_hints", None) or sizes.size_hints  # before and since torch 2.12
    return tuple(int(value) for value in find(values))


def _problem(sizes: tuple[int, int, int, int], torch_dtypes: tuple[Any, Any, Any], is_tf32: bool) -> GemmProblem:
    types = [dtype_of(dtype) for dtype in torch_dtypes]
    if None in types:
        a, b, c = torch_dtypes
        raise UnsupportedError(f"GEMMs of {a} and {b} to {c} are not in the Triton model")
    # `dtype_of` takes all fp32 for what it is usually multiplied as
    types = [DType.FP32 if dtype is DType.TF32 and (i == 2 or not is_tf32) else dtype for i, dtype in enumerate(types)]
    return GemmProblem(*sizes, *types)  # type: ignore[arg-type]


def _config_of(values: Mapping[str, Any], band_rows: int | None = None) -> TritonConfig | None:
    """Return what a candidate is launched with, of the values that Inductor makes it of; None: it has no tiles.

    `band_rows` are rows whose tiles are finished before the next columns'; None: as `values` say.
    """
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    if not set(names) <= values.keys():
        return None
    m, n, k, warps, stages = (int(values[name]) for name in names)
    group_m = values.get("GROUP_M", _DEFAULT_GROUP_M) if band_rows is None else math.ceil(band_rows / m)
    return TritonConfig(m, n, k, warps, stages, int(group_m))


def _traits_of(values: Mapping[str, Any], a: _Operand, b: _Operand) -> KernelTraits:
    is_tma = "TMA_SIZE" in values or bool(values.get("USE_TMA_LOAD")) or "WARP_SPECIALIZE" in values
    return KernelTraits("NUM_SMS" in values, is_tma, a.copy_bytes, b.copy_bytes)


def _name_of(caller: Any) -> str:
    return str(caller.name).rpartition("_")[0]


def _is_grouped(caller: Any) -> bool:
    return _name_of(caller) in _GROUPED_TEMPLATES


def _values_of(caller: Any) -> dict[str, Any]:
    info = caller.info_dict()
    m, k, n = (int(size) for size in str(info["tile_shape"]).strip("()").split(","))
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k} | {name: info[name] for name in ("num_warps", "num_stages")}


# ---- the report ----------------------------------------------------------------------------------------------------


class RankedConfig(NamedTuple):
    """A candidate of a template.

    Attributes:
        time_us: what it was ranked by; None where nothing was predicted. Infinite: it is not expected to launch.
        is_kept: whether Inductor gets it.
        graph_us: the time in a CUDA graph, which is held against the library's; None where it was not.
    """

    config: TritonConfig
    time_us: float | None
    is_kept: bool
    graph_us: float | None = None

    def __str__(self) -> str:
        time = "" if self.time_us is None else f": {self.time_us:.2f} us"
        return f"{self.config}{time}" + ("" if self.graph_us is None else f", {self.graph_us:.2f} in a CUDA graph")


class PrunedTemplate(NamedTuple):
    """The candidates of one template for one GEMM.

    Attributes:
        name: Inductor's name of the template.
        ranked_by: ``"model"``: the Triton model's time; ``"roofline"``: the model knows no such kernel, and times are
            the least that its tiles can take; ``"order"``: no tile is known, and the first of Inductor's list stay.
        candidates: in Inductor's order; those of no known tile are not among them.
        num_before, num_kept: all candidates, and those that stayed.
        reason: why the model did not rank them.
        num_slower: of the first `top_k` those that do not stay, for a library's kernel surely beats them.
    """

    name: str
    ranked_by: str
    candidates: tuple[RankedConfig, ...]
    num_before: int
    num_kept: int
    reason: str = ""
    num_slower: int = 0

    @property
    def kept(self) -> list[RankedConfig]:
        """Candidates that stayed, best first."""
        return sorted((each for each in self.candidates if each.is_kept), key=lambda each: each.time_us or 0.0)


class _Sums:
    """Sums of candidates over the parts of a GEMM, or over GEMMs."""

    def _parts(self) -> Iterable[Any]:
        raise NotImplementedError

    @property
    def num_before(self) -> int:
        """Candidates of templates that Inductor had."""
        return sum(each.num_before for each in self._parts())

    @property
    def num_kept(self) -> int:
        """Candidates of templates that stayed."""
        return sum(each.num_kept for each in self._parts())

    @property
    def num_slower(self) -> int:
        """Candidates among the first `top_k` that do not stay because a library's kernel surely beats them."""
        return sum(each.num_slower for each in self._parts())


@dataclass(frozen=True)
class PrunedGemm(_Sums):
    """A GEMM of a graph that Inductor lowered: its name there (mm, addmm, grouped_mm, ...) and what was ranked.

    `num_extern` kernels of libraries all stay. `library_us` is the predicted time of the library's kernel in a CUDA
    graph; None: candidates are not held against it.
    """

    op_name: str
    problem: GemmProblem
    templates: tuple[PrunedTemplate, ...]
    num_extern: int
    library_us: float | None = None

    def _parts(self) -> Iterable[PrunedTemplate]:
        return self.templates

    def __str__(self) -> str:
        text = f"{self.op_name} {self.problem}: {self.num_kept} of {self.num_before} candidates stay"
        text += f", besides {self.num_extern} of libraries" if self.num_extern else ""
        text += "" if self.library_us is None else f" ({self.library_us:.2f} us in a CUDA graph)"
        lines = [text + (f"; {self.num_slower} are surely slower" if self.num_slower else "")]
        for template in self.templates:
            by = f"by {template.ranked_by}" + (f" ({template.reason})" if template.reason else "")
            lines.append(f"  {template.name}, {by}: {template.num_kept} of {template.num_before}")
            lines += [f"    {each}" for each in template.kept]
        return "\n".join(lines)


@dataclass
class PruneReport(_Sums):
    """The report of a `prune_inductor`; it grows while graphs are compiled.

    Attributes:
        is_active: whether candidates are pruned: False where this torch's interface is unknown, and after leaving.
        gemms: one entry each time that Inductor lowered a GEMM with candidates of templates.
        notes: what was out of the ordinary.
    """

    gpu: str
    top_k: int | float
    is_active: bool = False
    gemms: list[PrunedGemm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def _parts(self) -> Iterable[PrunedGemm]:
        return self.gemms

    def warn(self, text: str, stacklevel: int) -> None:
        """Warn of what is out of the ordinary, and note it once; several threads may."""
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)
        warnings.warn(text, stacklevel=stacklevel + 1)

    def __str__(self) -> str:
        text = f"{self.gpu}: {self.num_kept} of {self.num_before} candidates stay for {len(self.gemms)} GEMMs"
        text += f"; {self.num_slower} are surely slower than libraries" if self.num_slower else ""
        counts = Counter(map(str, self.gemms))
        blocks = [block + (f"\n  {times} times" if times > 1 else "") for block, times in counts.items()]
        return "\n".join([text, *self.notes, *blocks])


# ---- pruning -------------------------------------------------------------------------------------------------------


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
        return self._or_all(choices, op_name, self._template_choices, choices, inputs, op_name)

    def callers(self, choices: list[Any]) -> list[Any]:
        """Return the candidates of a grouped GEMM that stay, and all of other operations: `ChoiceCaller`s.

        Those of dense ones, which were pruned before, are timed as CUDA graphs from here on.
        """
        from torch._inductor.virtualized import V

        is_innermost = getattr(V.choices, "gemm_eval_pruning", None) is self
        if not (self.report.is_active and is_innermost):
            return choices
        if any(map(_is_grouped, choices)):
            return self._or_all(choices, "grouped_mm", self._callers, choices)
        if any(choice.name in (*_LIBRARY_OPS, "bias_addmm") for choice in choices):
            return self._or_all(choices, "GEMM", _timed_in_graphs, choices)
        return choices

    def _or_all(self, choices: list[Any], op_name: str, prune: Callable[..., list[Any]], *args: Any) -> list[Any]:
        try:
            return prune(*args)
        except Exception as error:  # whatever an unknown torch raises: a compilation must not end here
            text = f"all candidates of this {op_name} stay, for they cannot be read: {type(error).__name__}: {error}"
            self.report.warn(text, 4)
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
        is_tf32 = any(each.get("ALLOW_TF32") for each in values.values())
        problem, a, b = _dense_gemm(inputs, op_name, is_tf32=is_tf32)
        library = None
        if self.library is not None and op_name in _LIBRARY_OPS and num_extern:
            # a matrix that is added is copied into C first; a bias, whose rows are one and the same, is not
            adds_matrix = "add" in op_name and inputs.strides_hinted()[0][-2:-1] != (0,)
            library = self.library.time(problem, has_epilogue=adds_matrix or ranking.has_epilogue(node))
        kept: set[int] = set(range(len(choices))) - values.keys()
        templates = []
        for (name, hint_override), indices in by_template.items():
            configs = [_config_of(values[i]) for i in indices]
            traits = _traits_of(values[indices[0]], a, b)
            # for other sizes than the hint's the library was not predicted
            template, stay = self._rank(name, problem, configs, traits, None if hint_override else library)
            templates.append(template)
            kept |= {indices[i] for i in stay}
        library_us = None if library is None else library.latency_us
        self.report.gemms.append(PrunedGemm(op_name, problem, tuple(templates), num_extern, library_us))
        return [choice for i, choice in enumerate(choices) if i in kept]

    def _callers(self, choices: list[Any]) -> list[Any]:
        grouped = [i for i, choice in enumerate(choices) if _is_grouped(choice)]
        first = choices[grouped[0]]
        problem, a, b = _grouped_gemm(first)
        values = [_values_of(choices[i]) for i in grouped]
        is_tma = "USE_TMA_LOAD=True" in str(getattr(first, "description", ""))
        traits = _traits_of({**values[0], "NUM_SMS": self.arch.num_sms, "USE_TMA_LOAD": is_tma}, a, b)
        configs = [_config_of(each, problem.M) for each in values]  # its tiles go down all of M first
        name = _name_of(first)
        template, stay = self._rank(name, problem, configs, traits)
        dropped = set(grouped) - {grouped[i] for i in stay}
        num_extern = len(choices) - len(grouped)
        self.report.gemms.append(PrunedGemm(name.removeprefix("triton_"), problem, (template,), num_extern))
        return [choice for i, choice in enumerate(choices) if i not in dropped]

    def _rank(
        self, name: str, problem: GemmProblem, configs: Sequence[TritonConfig | None], traits: KernelTraits,
        library: LibraryTime | None = None,
    ) -> tuple[PrunedTemplate, list[int]]:  # fmt: skip
        """Rank one template's candidates; return the report of it and the indices of those that stay."""
        count = num_kept(self.top_k, len(configs))
        stay = list(range(count))
        tiled = [config for config in configs if config is not None]
        if len(tiled) < len(configs):
            return PrunedTemplate(name, "order", (), len(configs), count, "it has no tiles of its own"), stay
        times, ranked_by, reason = ranking.rank_times(self.arch, problem, tiled, traits)
        order = [i for i in sorted(range(len(tiled)), key=lambda i: (times[i], i)) if times[i] < float("inf")]
        if order:
            stay = order[:count]
        else:
            reason = "none is expected to launch: the first stay"
        num_first, graph_us = len(stay), None
        if library is not None and ranked_by == "model":
            graph_us = ranking.graph_times_us(self.arch, problem, tiled, traits)
            if graph_us is not None:
                stay = [i for i in stay if not library.beats(graph_us[i], is_best=i == stay[0])]
        candidates = tuple(
            RankedConfig(config, float(times[i]), i in stay, None if graph_us is None else float(graph_us[i]))
            for i, config in enumerate(tiled)
        )
        num_slower = num_first - len(stay)
        return PrunedTemplate(name, ranked_by, candidates, len(tiled), len(stay), reason, num_slower), stay


class PruningChoices:
    """Makes the choices handler: for `torch._inductor.config.inductor_choices_class`, which is part of cache keys.

    `make_base` makes the handler that it stands before; None: Inductor's own.
    """

    def __init__(self, pruning: Pruning, make_base: Callable[[], Any] | None) -> None:
        self.pruning, self.make_base = pruning, make_base

    def __call__(self) -> Any:
        """Return a handler for a thread that has none yet."""
        from torch._inductor.choices import InductorChoices

        return self.around((self.make_base or InductorChoices)())

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
            report.notes.append(text)
            spec = spec.model_copy(update={"num_sms": num_sms})
    missing = missing_interface()
    if missing is not None:
        report.warn(
            f"Inductor is left as it is: torch {torch.__version__} has no interface that is known: {missing}", 3
        )
        yield report
        return
    with ExitStack() as stack:
        _install(stack, Pruning(spec, top_k, report, drop_slower))
        report.is_active = True
        stack.callback(setattr, report, "is_active", False)
        yield report


def _install(stack: ExitStack, pruning: Pruning) -> None:
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


# ---- timing in CUDA graphs -----------------------------------------------------------------------------------------

_MOST_CALLS = 10
_GRAPH_MS = 1.0  # so many calls as this holds
_REPLAYS = 5
_LEAST_MS = 1e-4  # where a difference is within its noise


def _timed_in_graphs(choices: list[Any]) -> list[Any]:
    """Let candidates of a GEMM, Inductor's `ChoiceCaller`s, be timed in CUDA graphs, all or none.

    None where this torch times them otherwise than torch 2.10 to 2.15 do, or in another process.
    """
    from torch._inductor import config

    # what goes to another process is pickled, and timed there
    is_elsewhere = config.autotune_in_subproc or getattr(config, "pipeline_max_autotune_gemm", False)
    if not is_elsewhere and len(choices) > 1 and all(map(_can_be_timed, choices)):
        for choice in choices:
            choice.benchmark = _in_graph(choice.bmreq, choice.benchmark)
    return choices


def _can_be_timed(choice: Any) -> bool:
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

    # others, such as graphs of several kernels and calls that allocate their result, are timed in ways of their own
    if not isinstance(choice, ExternKernelCaller | TritonTemplateCaller) or choice.layout.device.type != "cuda":
        return False
    is_timed_by_request = callable(getattr(getattr(choice, "bmreq", None), "do_bench", None))
    return is_timed_by_request and getattr(choice, "has_out_variant", True)


def _in_graph(request: Any, benchmark: Callable[..., float]) -> Callable[..., float]:
    def benchmark_in_graph(*args: Any, **kwargs: Any) -> float:
        import torch

        do_bench = request.do_bench

        def of_graph(call: Callable[[], Any], *tensors: Any, **options: Any) -> Any:
            try:
                return _graph_ms(call)
            except RuntimeError:  # it cannot be captured, or does not run, which Inductor is to see
                torch.cuda.synchronize()
                return do_bench(call, *tensors, **options)

        # launchers take the stream that is current when they are made, and the default one cannot be captured
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        request.do_bench = of_graph
        try:
            with torch.cuda.stream(stream):
                return benchmark(*args, **kwargs)
        finally:
            del request.do_bench
            torch.cuda.current_stream().wait_stream(stream)

    return benchmark_in_graph


def _graph_ms(call: Callable[[], Any]) -> float:
    """Return what a call takes on the GPU when its operands are not in L2: what it adds to a graph of flushes."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    flushed = torch.empty(l2_bytes // 4, dtype=torch.int32, device="cuda")
    call()  # modules are loaded, workspaces allocated
    num_calls = max(1, min(_MOST_CALLS, round(_GRAPH_MS / max(_elapsed_ms(call), _LEAST_MS))))

    def flush_and_call() -> None:
        flushed.zero_()
        call()

    both_ms, flush_ms = (_replay_ms(each, num_calls) for each in (flush_and_call, flushed.zero_))
    return max((both_ms - flush_ms) / num_calls, _LEAST_MS)


def _replay_ms(call: Callable[[], Any], num_calls: int) -> float:
    import torch

    graph = torch.cuda.CUDAGraph()
    # not `torch.cuda.graph`, which may collect garbage and empties the allocator's cache each time
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for _ in range(num_calls):
            call()
    finally:
        graph.capture_end()
    graph.replay()
    return min(_elapsed_ms(graph.replay) for _ in range(_REPLAYS))


def _elapsed_ms(call: Callable[[], Any]) -> float:
    import torch

    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
