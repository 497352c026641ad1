"""`predict_module`: what a module of torch takes on an arch, without running it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemm_eval.arch import ArchSpec, GpuSpec, gpu_slug, list_archs
from gemm_eval.errors import ArchNotFoundError, InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.torch.eager_mode import optimizer_works
from gemm_eval.torch.graph import FUSIONS, INDUCTOR_IR
from gemm_eval.torch.prediction import ModulePrediction
from gemm_eval.torch.price import assemble, assemble_kernels
from gemm_eval.torch.render import SizeTable
from gemm_eval.words import check_flag, check_word, needs_extra, shown

if TYPE_CHECKING:
    import torch


def arch_of_name(device_name: str) -> str:
    """Return the preset of a GPU by the name that its driver has for it: ``"NVIDIA H200"``."""
    slug = gpu_slug(device_name)
    if slug in list_archs():
        return slug
    raise ArchNotFoundError(f"no preset is a {device_name} ({slug}): say which arch to predict for")


ATTENTION_LIBRARIES = ("flash", "cudnn", "trtllm")
"""Whose fused attention runs on GPUs; torch calls the first two."""

Arch = ArchSpec | GEMMEvaluator | str | os.PathLike[str]
"""Where: an arch, the name or path of one, or an evaluator with options of one's own."""


def predict_module(
    module: torch.nn.Module, example_inputs: Any, arch: Arch, *, backward: bool = False, optimizer: Any = None,
    fusion: str = "inductor", attention_library: str | None = None, **options: Any,
) -> ModulePrediction:  # fmt: skip
    """Predict what a module takes on an arch: which kernels, how long, what limits them. Nothing runs.

    >>> with torch.device("meta"):                                       # doctest: +SKIP
    ...     model = torchvision.models.resnet50().half().eval()
    >>> predict_module(model, torch.empty(8, 3, 224, 224, dtype=torch.half), "h200-sxm")   # doctest: +SKIP

    Kernels run one after the other, launched without gaps, as in a CUDA graph. The module is traced on shapes: its
    parameters may lie on any device, "meta" too, and are neither read nor copied.

    Args:
        module: what is traced, in its own mode of training or evaluation.
        example_inputs: of its `forward`: a tensor, a sequence of arguments, or a mapping of arguments by name.
            Values of small integer tensors (positions, masks) are read where the module asks for them; others never.
        arch: an arch, the name or path of one, or a `GEMMEvaluator`.
        backward: gradients of all parameters and inputs that require them, too: both GEMMs of each GEMM, and what lies
            between.
        optimizer: with `backward`, a step of it too: ``"adamw"``, ``"sgd"``, ``"sgd_momentum"``, ... or an optimizer of
            torch; None: none.
        fusion: ``"inductor"``: elementwise operations and reductions fuse by rules of torch.compile; ``"inductor-ir"``:
            Inductor itself says what fuses, in seconds (TORCH.md); ``"eager"``: each operation is a
            kernel.
        attention_library: whose fused attention runs on a GPU: ``"flash"`` or ``"cudnn"``, as torch calls them, or
            ``"trtllm"``; None: torch's own choice.
        options: of a new `GEMMEvaluator` where `arch` is none: `l2`, `clock`, `library`, `correction`, ...

    Raises:
        InvalidInputError, InvalidOptionError: an argument is none of these, or nothing has a gradient.
        UnsupportedError: what the module does depends on values of weights or activations.
        ArchError: `arch` names no valid architecture.
    """
    with needs_extra("predict_module", "torch"):
        import torch
    if not isinstance(module, torch.nn.Module):
        raise InvalidInputError(f"module must be a torch.nn.Module, got {shown(module)}")
    from gemm_eval.torch.trace import trace_module

    check_flag("backward", backward)
    if optimizer is not None and not backward:
        raise InvalidOptionError("optimizer needs backward=True: a step is made of gradients")
    check_word("fusion", fusion, (*FUSIONS, INDUCTOR_IR))
    evaluator = evaluator_of(arch, options, attention_library)
    steps = [] if optimizer is None else optimizer_works(optimizer, module.parameters())
    args, kwargs = arguments_of(example_inputs)
    if fusion == INDUCTOR_IR:
        from gemm_eval.torch.inductor_ir import inductor_kernels

        if not isinstance(evaluator.arch, GpuSpec):
            name = evaluator.arch.name
            raise UnsupportedError(f'fusion="inductor-ir" has no kernels for {name}, no GPU: take fusion="inductor"')
        kernels, modules = inductor_kernels(module, args, kwargs, evaluator.arch, backward=backward)
        return assemble_kernels(kernels, modules, evaluator, fusion, attention_library, steps)
    trace = trace_module(module, args, kwargs, backward=backward, is_compiled=fusion == "inductor")
    return assemble(trace, evaluator, fusion, attention_library, steps)


def predict_sizes(
    module: torch.nn.Module, make_inputs: Callable[..., Any], arch: Arch, sizes: Mapping[str, Iterable[int]],
    **options: Any,
) -> SizeTable:  # fmt: skip
    """Predict a module over ranges of sizes: a table with a row for each combination.

    >>> predict_sizes(model, lambda batch, seq: torch.zeros(batch, seq, dtype=torch.long), "l40s",
    ...               {"batch": (1, 8), "seq": (128, 1024)})                         # doctest: +SKIP

    `sizes` has the values of each size by name; `make_inputs` is called with one value of each by name, and returns
    `example_inputs`. Other arguments are those of `predict_module`.

    Raises:
        InvalidOptionError: `sizes` is empty; else as `predict_module`.
    """
    values = {name: tuple(of) for name, of in sizes.items()}
    if not values or not all(values.values()):
        raise InvalidOptionError(f"sizes must have one value at least of each size, got {shown(dict(sizes))}")
    ours = {
        name: options.pop(name) for name in ("backward", "optimizer", "fusion", "attention_library") if name in options
    }
    evaluator = evaluator_of(arch, options)
    points = itertools.product(*values.values())
    inputs = ((point, make_inputs(**dict(zip(values, point, strict=True)))) for point in points)
    return SizeTable(
        tuple(values), tuple((point, predict_module(module, of, evaluator, **ours)) for point, of in inputs)
    )


def evaluator_of(
    arch: Arch, options: Mapping[str, Any], attention_library: str | None = None, fusion: str = "eager"
) -> GEMMEvaluator:
    """Check options of a prediction; return an evaluator of an arch with the others, or the one that was given."""
    check_word("fusion", fusion, FUSIONS)
    if attention_library is not None:
        check_word("attention_library", attention_library, ATTENTION_LIBRARIES)
    if isinstance(arch, GEMMEvaluator):
        if options:
            raise InvalidOptionError(f"an evaluator has options of its own, got {', '.join(options)} too")
        return arch
    try:
        return GEMMEvaluator(arch, **options)
    except TypeError as error:
        raise InvalidOptionError(f"options must be those of predict_module or GEMMEvaluator: {error}") from None


def arguments_of(example_inputs: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return arguments by place and by name of `example_inputs`."""
    if isinstance(example_inputs, Mapping):
        return (), example_inputs
    if isinstance(example_inputs, list | tuple):
        return tuple(example_inputs), {}
    return (example_inputs,), {}
