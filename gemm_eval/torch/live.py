"""`predict`: what code that runs here would take elsewhere, written down while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from gemm_eval.checks import check_word
from gemm_eval.errors import GemmEvalError
from gemm_eval.extras import needs_extra
from gemm_eval.torch.evaluate_module import Arch, check_attention_library, evaluator_for
from gemm_eval.torch.functions import FunctionMode
from gemm_eval.torch.fusion import FUSIONS
from gemm_eval.torch.graph import Trace
from gemm_eval.torch.operators import type_of
from gemm_eval.torch.prediction import ModulePrediction
from gemm_eval.torch.price import assemble
from gemm_eval.torch.quantized import QuantizedLinear, quantized_linear
from gemm_eval.torch.recorder import Recorder, current_precision
from gemm_eval.torch.trace import follow_modules

with needs_extra("predict", "torch"):
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Prediction:
    """The result of `predict`: the trace while code runs, and the prediction once the block is left."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._result: ModulePrediction | None = None

    @property
    def result(self) -> ModulePrediction:
        """The prediction.

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
        check_word("fusion", fusion, FUSIONS)
        check_attention_library(attention_library)
        self._evaluator = evaluator_for(arch, options)
        self._fusion, self._attention_library = fusion, attention_library
        self._stack: ExitStack | None = None

    def __enter__(self) -> Prediction:
        if self._stack is not None:
            raise GemmEvalError("a block of predict cannot be entered twice; make another one")
        self._recorder = Recorder(current_precision())
        self._stack = ExitStack()
        for context in (
            follow_modules(self._recorder), _quantized_layers(self._recorder),
            FunctionMode(self._recorder, is_compiled=self._fusion == "inductor"), self._recorder,
        ):  # fmt: skip
            self._stack.enter_context(context)
        self._prediction = Prediction(self._recorder.trace)
        return self._prediction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._stack is not None
        self._stack.close()
        if kind is None:
            trace = self._recorder.finish()
            self._prediction._result = assemble(trace, self._evaluator, self._fusion, self._attention_library)


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
