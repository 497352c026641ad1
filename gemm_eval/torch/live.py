"""`predict`: what code that runs here would take elsewhere, written down while it runs."""

from __future__ import annotations

from contextlib import ExitStack
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
from gemm_eval.torch.quantized import quantized_linear
from gemm_eval.torch.recorder import Recorder, current_precision
from gemm_eval.torch.trace import follow_modules

with needs_extra("predict", "torch"):
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Prediction:
    """The result of `predict`: the prediction, once the block is left.

    Attributes:
        trace: what ran, while it runs.
    """

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

    Args:
        arch: an arch, the name or path of one, or a `GEMMEvaluator`.
        fusion: ``"eager"``: each operation is a kernel, as the code runs; or ``"inductor"``.
        attention_library: as for `predict_module`.
        options: of a new `GEMMEvaluator`.

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
        self._stack.enter_context(follow_modules(self._recorder))
        self._stack.enter_context(_quantized_layers(self._recorder))
        self._stack.enter_context(FunctionMode(self._recorder, is_compiled=self._fusion == "inductor"))
        self._stack.enter_context(self._recorder)
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


class _quantized_layers:  # noqa: N801
    """Layers of quantization packages are written down as one operation, whatever their kernels are."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._quiet: list[Any] = []

    def __enter__(self) -> None:
        self._hooks = [
            register_module_forward_pre_hook(self._before), register_module_forward_hook(self._after, always_call=True)
        ]  # fmt: skip

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        linear = quantized_linear(module)
        if linear is not None and args and isinstance(args[0], torch.Tensor):
            quiet = self._recorder.quiet()
            quiet.__enter__()
            self._quiet.append((module, linear, quiet))

    def _after(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if not self._quiet or self._quiet[-1][0] is not module:
            return
        _, linear, quiet = self._quiet.pop()
        quiet.__exit__(None, None, None)
        if not isinstance(out, torch.Tensor):
            return
        x = args[0]
        dtype = type_of(x.dtype, True)
        works = linear.works(out.numel() // linear.N, linear.wide(dtype))
        self._recorder.add(f"linear ({linear.scheme})", works, [x], [out])
