"""Traces: of a module that runs on shapes, and of code that runs here (`predict`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from gemm_eval.errors import GemmEvalError, InvalidInputError
from gemm_eval.torch.evaluate_module import Arch, evaluator_of
from gemm_eval.torch.functions import functions_caught, replaced
from gemm_eval.torch.graph import Trace
from gemm_eval.torch.operators import type_of
from gemm_eval.torch.prediction import ModulePrediction
from gemm_eval.torch.price import assemble
from gemm_eval.torch.quantized import QuantizedLinear, quantized_linear, quantized_linears
from gemm_eval.torch.recorder import Recorder, current_precision
from gemm_eval.torch.shapes import Shapes
from gemm_eval.words import needs_extra

with needs_extra("predict", "torch"):
    import torch
    import torch.utils.checkpoint
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
    from torch.utils._pytree import tree_leaves, tree_map_only


@contextmanager
def follow_modules(recorder: Recorder, root: torch.nn.Module | None = None) -> Iterator[None]:
    """Keep `recorder.path` that of the module that runs.

    Paths are those below `root`; None: each outermost module that runs is a root, named by its class.
    """
    paths: dict[int, str] = {}
    stack: list[str] = []

    def learn(module: torch.nn.Module, name: str) -> None:
        for path, inner in module.named_modules():
            full = ".".join(filter(None, (name, path)))
            paths.setdefault(id(inner), full)
            recorder.trace.modules.setdefault(full, type(inner).__name__)

    def enter(module: torch.nn.Module, _: Any) -> None:
        if root is None and id(module) not in paths:
            learn(module, ".".join(filter(None, (recorder.path, type(module).__name__))))
        stack.append(recorder.path)
        recorder.path = paths.get(id(module), recorder.path)

    def leave(*_: Any) -> None:
        if stack:  # a module that ran before the first hook leaves without having entered
            recorder.path = stack.pop()

    if root is not None:
        learn(root, "")
    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        recorder.path = ""


def trace_module(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, backward: bool = False,
    is_compiled: bool = False,
) -> Trace:  # fmt: skip
    """Return what a module does with some inputs; nothing is computed, allocated or changed.

    Args:
        module: on any device, "meta" too; its parameters may be of any size.
        args, kwargs: of its `forward`; tensors on any device.
        backward: gradients of all parameters that require them too, from those of the outputs, or of the output
            `loss` where there is one.
        is_compiled: torch's fast paths are those that torch.compile takes, not those of eager mode.
    """
    while hasattr(module, "_orig_mod"):  # of torch.compile
        module = module._orig_mod
    shapes = Shapes()
    recorder = Recorder(current_precision(), shapes.run)
    shapes.where = recorder
    skipped = quantized_linears(module)
    state: dict[str, Any] = {}
    for tensors, options in (
        (module.named_parameters, {"keeps_grad": True, "is_weight": True}), (module.named_buffers, {}),
    ):  # fmt: skip
        for name, tensor in tensors(remove_duplicate=False):
            if name.rpartition(".")[0] not in skipped:
                state[name] = shapes.of(tensor, **options)  # torch folds matmul by gradients
    given, named = tree_map_only(
        torch.Tensor, lambda tensor: shapes.of(tensor, keeps_grad=backward), (tuple(args), dict(kwargs))
    )
    functions = functions_caught(recorder, shapes, is_compiled=is_compiled)
    with (
        _as_written(is_compiled), torch.set_grad_enabled(backward), functions, follow_modules(recorder, module),
        _standing_in(module, skipped, recorder), recorder,
    ):  # fmt: skip
        out = torch.func.functional_call(module, state, given, named, strict=False)
        grads = _gradients(out, state, recorder) if backward else None
    shapes.clear()
    trace = recorder.finish()
    del out, grads
    return trace


def _gradients(out: Any, state: Mapping[str, Any], recorder: Recorder) -> Any:
    loss = out.get("loss") if isinstance(out, Mapping) else None
    leaves = tree_leaves(dict(out) if isinstance(out, Mapping) else out) if loss is None else [loss]
    ends = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = list({id(tensor): tensor for tensor in state.values() if tensor.requires_grad}.values())
    if not ends or not inputs:
        what = "no output depends on a parameter" if inputs else "no parameter requires one"
        raise InvalidInputError(f"backward=True needs gradients, but {what}: see requires_grad of the parameters")
    recorder.phase = "backward"
    with recorder.quiet():
        seeds = [torch.empty_like(end) for end in ends]
    # as `backward`, but that modes are left on: what is checkpointed runs again under them
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(tuple(ends), tuple(seeds), False, False, (), allow_unreachable=True, accumulate_grad=True)
    return [tensor.grad for tensor in inputs]


@contextmanager
def _standing_in(module: torch.nn.Module, linears: Mapping[str, Any], recorder: Recorder) -> Iterator[None]:
    """Put stand-ins in the places of quantized linear layers while the module is traced."""
    changed = []
    try:
        for path, linear in linears.items():
            layer = module.get_submodule(path)
            changed.append((layer, layer.__dict__.get("forward")))
            layer.__dict__["forward"] = linear.stand_in(recorder)
        yield
    finally:
        for layer, before in changed:
            if before is None:
                del layer.__dict__["forward"]
            else:
                layer.__dict__["forward"] = before


@contextmanager
def _as_written(is_compiled: bool) -> Iterator[None]:
    """Functions that torch.compile made run as they were written, autocast and checkpoints as where there is a GPU.

    Modules that ask whether they are compiled hear what the prediction is for: transformers makes masks of attention
    then, for what it would see in values it does not see in a graph.
    """
    with ExitStack() as stack:
        for home, name, answer in (
            (torch.cuda.amp.common, "amp_definitely_not_available", False), (torch.cuda, "is_bf16_supported", True),
            (torch.compiler, "is_compiling", is_compiled), (torch.utils.checkpoint, "_infer_device_type", "cuda"),
        ):  # fmt: skip
            stack.enter_context(replaced(home, name, lambda *_, answer=answer, **__: answer))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


class predict:  # noqa: N801  it is used as a function
    """Write down what runs in a block, on tensors that are there, and predict what it would take on an arch.

    >>> with predict("h200-sxm") as p:        # doctest: +SKIP
    ...     loss = model(x).sum()
    ...     loss.backward()
    >>> print(p)                              # doctest: +SKIP

    What depends on values of tensors runs as it is: experts have the rows that they were given. Results are those that
    the code has without it.

    Arguments are those of `predict_module`; by default each operation is a kernel, as the code runs (``"eager"``).

    Raises:
        InvalidOptionError, ArchError: an argument is none of these.
    """

    def __init__(
        self, arch: Arch, *, fusion: str = "eager", attention_library: str | None = None, **options: Any
    ) -> None:
        self._evaluator = evaluator_of(arch, options, attention_library, fusion)
        self._fusion, self._attention_library = fusion, attention_library
        self._recorder = Recorder(current_precision())
        self.trace = self._recorder.trace
        self._stack: ExitStack | None = None
        self._result: ModulePrediction | None = None

    @property
    def result(self) -> ModulePrediction:
        """The prediction, whose attributes are those of this object too.

        Raises:
            GemmEvalError: the block has not been left yet.
        """
        if self._result is None:
            raise GemmEvalError("the prediction is there once its `with` block is left")
        return self._result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.result, name)

    def __str__(self) -> str:
        return str(self.result)

    def __enter__(self) -> predict:
        if self._stack is not None:
            raise GemmEvalError("a block of predict cannot be entered twice; make another one")
        self._stack = ExitStack()
        for context in (
            follow_modules(self._recorder), _quantized_layers(self._recorder),
            functions_caught(self._recorder, is_compiled=self._fusion == "inductor"), self._recorder,
        ):  # fmt: skip
            self._stack.enter_context(context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._stack is not None
        self._stack.close()
        if kind is None:
            self._result = assemble(self._recorder.finish(), self._evaluator, self._fusion, self._attention_library)


@contextmanager
def _quantized_layers(recorder: Recorder) -> Iterator[None]:
    """Write layers of quantization packages down as one operation, whatever their kernels are."""
    quiet: list[tuple[Any, QuantizedLinear, Any]] = []

    def enter(module: torch.nn.Module, args: Any) -> None:
        linear = quantized_linear(module)
        if linear is not None and args and isinstance(args[0], torch.Tensor):
            context = recorder.quiet()
            context.__enter__()
            quiet.append((module, linear, context))

    def leave(module: torch.nn.Module, args: Any, out: Any) -> None:
        if not quiet or quiet[-1][0] is not module:
            return
        _, linear, context = quiet.pop()
        context.__exit__(None, None, None)
        if isinstance(out, torch.Tensor):
            works = linear.works(out.numel() // linear.N, linear.wide(type_of(args[0].dtype, True)))
            recorder.add(f"linear ({linear.scheme})", works, [args[0]], [out])

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
