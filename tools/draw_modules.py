"""Modules of torch that are drawn from a seed, nested as real models are, to fit rules and to examine them.

    python -m tools.draw_modules                 # a table: each draw with its family, type, sizes and estimated time
    python -m tools.draw_modules --coverage      # operators of the draws, and how many draws have each
    python -m tools.draw_modules --predict       # time, refusals and operators without a price, by `predict_module`

`drawn(seed, number)` is the same module on every machine; the values of its weights and inputs are not. A draw whose
estimated time or memory is out of bounds is drawn again; `attempt` says which one was kept, and rebuilds it exactly
where an estimate differs between versions of torch.
"""

import argparse
import contextlib
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tools.drawn.common import Choices, Input, Plan
from tools.drawn.families import FAMILIES

SEEDS = {
    "fit": 1, "interval": 2, "report": 3, "second report": 4, "third report": 5, "fourth report": 6, "fifth report": 7,
    "second fit": 8, "sixth report": 9, "second interval": 10, "seventh report": 11, "third fit": 12,
    "eighth report": 13, "ninth report": 14,
}  # fmt: skip
"""The seed of each split. Earlier reports became data that rules are made from when the ninth was drawn."""

REAL_SEED = 0
"""In the place of a seed: models of `drawn/real.py`, of the split "report" as well."""

_ORDER = ("fit", "interval", "fit", "report")
_LEAST_US = ((60.0, 1, 160), 3), ((250.0, 4, 256), 2), ((1000.0, 16, 512), 1.2)
"""Estimated microseconds that a draw takes at least, and limits of its batch, with weights: few would be long."""

_MAX_US = 12_000.0
_MAX_BYTES, _MAX_CALLS = 3 << 30, 700
_MAX_SET = 1 << 16  # elements of a tensor of another library's model whose values may matter
_FLOP_PER_US = {torch.bfloat16: 500e6, torch.float16: 500e6, torch.float32: 40e6}
_BYTES_PER_US, _MIN_CALL_US = 3.5e6, 1.5


class Autocast(nn.Module):
    """A module whose GEMMs and convolutions run in another type."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=self.dtype):
            return self.module(**inputs)


@dataclass(frozen=True)
class Draw:
    """A drawn module: what makes it, its inputs, and how torch is to be set."""

    seed: int
    number: int
    attempt: int
    family: str
    text: str
    dtype: torch.dtype
    autocast: torch.dtype | None
    is_training: bool
    is_channels_last: bool
    tf32: bool
    inputs: dict[str, Input]
    module: nn.Module

    def tensors(self, device: str = "meta") -> dict[str, torch.Tensor]:
        """Return example inputs by name."""
        with torch.device(device):
            tensors = {name: item.tensor(self.dtype) for name, item in self.inputs.items()}
        if self.is_channels_last:
            for name, tensor in tensors.items():
                if tensor.dim() == 4:
                    tensors[name] = tensor.to(memory_format=torch.channels_last)
        return tensors

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Set whether fp32 may run as tf32, as this draw has it."""
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tf32
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]

    def facts(self) -> dict[str, Any]:
        """Return what identifies the draw in a table."""
        return {
            "seed": self.seed, "number": self.number, "attempt": self.attempt, "family": self.family,
            "dtype": str(self.dtype).removeprefix("torch."),
            "autocast": str(self.autocast or "").removeprefix("torch."),
            "is_training": self.is_training, "is_channels_last": self.is_channels_last, "tf32": self.tf32,
            "num_parameters": sum(parameter.numel() for parameter in self.module.parameters()), "text": self.text,
        }  # fmt: skip


def _attempt(seed: int, number: int, attempt: int, device: str) -> Draw:
    choices = Choices(f"{seed} {number} {attempt}")
    family = choices.pick(*((name, weight) for name, (_, weight) in FAMILIES.items()))
    dtype = choices.pick((torch.bfloat16, 10), (torch.float16, 5), (torch.float32, 5))
    tf32 = dtype is torch.float32 and choices.chance(0.5)
    autocast = (
        choices.choice((torch.bfloat16, torch.float16)) if dtype is torch.float32 and choices.chance(0.35) else None
    )
    is_training, is_channels_last = choices.chance(0.12), choices.chance(0.4)
    plan = Plan(choices, dtype, choices.size(*Choices(f"{seed} {number}").pick(*_LEAST_US)[1:]))
    with torch.device(device):
        module = FAMILIES[family][0](plan)
    module = module.to(dtype).train(is_training)
    if is_channels_last:
        for parameter in module.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.to(memory_format=torch.channels_last)
    if autocast is not None:
        module = Autocast(module, autocast)
    return Draw(
        seed, number, attempt, family, f"batch {plan.batch} {' '.join(plan.text)}", dtype, autocast, is_training,
        is_channels_last, tf32, plan.inputs, module,
    )  # fmt: skip


def drawn(seed: int, number: int, device: str = "meta", attempt: int | None = None) -> Draw:
    """Return draw `number` of a seed, with its weights on a device; `attempt` as it was noted, None: find it."""
    if seed == REAL_SEED:
        return _real(number, device)
    if attempt is None:
        least_us = Choices(f"{seed} {number}").pick(*_LEAST_US)[0]
        attempt = next(at for at in range(1000) if _is_in_bounds(_attempt(seed, number, at, "meta"), least_us))
    return _attempt(seed, number, attempt, device)


class _Unset(TorchFunctionMode):
    """Leaves large tensors as they were allocated: weights that nobody reads take no time and no memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        tensor = args[0] if args else (kwargs or {}).get("tensor")  # of torch.nn.init
        is_in_place = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
        if is_in_place and isinstance(tensor, torch.Tensor) and tensor.numel() > _MAX_SET:
            return tensor
        return func(*args, **(kwargs or {}))


def _real(number: int, device: str) -> Draw:
    from tools.drawn.real import real_names

    library, name, sizes = real_names()[number]
    return drawn_real(library, f"{name} {'x'.join(map(str, sizes))}", device, number)


def drawn_real(library: str, text: str, device: str = "meta", number: int = -1) -> Draw:
    """Return a model of another library by its name and sizes, ``"resnet18 32"``: numbers change with its version."""
    from tools.drawn.real import real_module

    name, sizes = text.split()
    is_meta, dtype = device == "meta", torch.bfloat16
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.device("cpu" if is_meta else device))  # some count on the values of small tensors
        if is_meta:
            stack.enter_context(_Unset())
            draw = "torch.nn.init._no_grad_trunc_normal_"  # draws again until all values are in its range
            stack.enter_context(mock.patch(draw, lambda tensor, *_, **__: tensor))
        inputs, module = real_module(library, name, tuple(map(int, sizes.split("x"))))
    if is_meta:
        weights = {weight: torch.empty_like(weight, device="meta") for weight in module.parameters()}
        module._apply(lambda tensor: weights.get(tensor, tensor))
    return Draw(REAL_SEED, number, 0, library, text, dtype, None, False, False, False, inputs, module.to(dtype))


def order_of_real(count: int | None = None) -> list[tuple[str, int, int]]:
    """Return (split, seed, number) of models of other libraries, `count` or all."""
    from tools.drawn.real import real_names

    return [("report", REAL_SEED, number) for number in range(len(real_names()))][:count]


def order(count: int = 200, split: str = "") -> list[tuple[str, int, int]]:
    """Return (split, seed, number) of the first draws: of one split, or of the first three in turns."""
    if split:
        return [(split, SEEDS[split], number) for number in range(count)]
    numbers = Counter[str]()
    result = []
    for index in range(count):
        split = _ORDER[index % len(_ORDER)]
        result.append((split, SEEDS[split], numbers[split]))
        numbers[split] += 1
    return result


@dataclass
class Estimate:
    """A rough time of a draw, the largest memory of a call and its operands, and calls by operator."""

    us: float
    largest_bytes: int
    calls: Counter[str]


class _Counting(TorchDispatchMode):
    def __init__(self, flop_per_us: float) -> None:
        super().__init__()
        self.flop_per_us, self.estimate = flop_per_us, Estimate(0.0, 0, Counter())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.estimate.calls[func._schema.name.replace("aten::", "")] += 1
        if func.is_view or "empty" in func._schema.name:
            return out
        num_bytes = sum(x.numel() * x.element_size() for x in _tensors((args, out)))
        flop = (
            flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
            if func._overloadpacket in flop_registry
            else 0
        )
        self._add(num_bytes, flop)
        return out

    def _add(self, num_bytes: int, flop: int) -> None:
        self.estimate.us += _MIN_CALL_US + max(num_bytes / _BYTES_PER_US, flop / self.flop_per_us)
        self.estimate.largest_bytes = max(self.estimate.largest_bytes, num_bytes)

    def attention(self, q: Any, k: Any, v: Any, *_: Any, is_causal: bool = False, **__: Any) -> torch.Tensor:
        """Count attention as one call that keeps its scores to itself."""
        self.estimate.calls["scaled_dot_product_attention"] += 1
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        flop = 2 * q.numel() // q.shape[-1] * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        self._add(sum(x.numel() * x.element_size() for x in (q, k, v, out)), flop // (1 + is_causal))
        return out


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def estimate(draw: Draw) -> Estimate:
    """Return a rough estimate of a draw on "meta", by bytes and operations of its calls alone."""
    flop_per_us = _FLOP_PER_US[draw.autocast or draw.dtype]
    if draw.tf32:
        flop_per_us = max(flop_per_us, 250e6)
    counting = _Counting(flop_per_us)
    attention = mock.patch.object(F, "scaled_dot_product_attention", counting.attention)
    with warnings.catch_warnings(), torch.no_grad(), attention, counting:
        warnings.simplefilter("ignore")  # that autocast does nothing without a GPU
        draw.module(**draw.tensors())
    return counting.estimate


def _is_in_bounds(draw: Draw, least_us: float) -> bool:
    state = sum(x.numel() * x.element_size() for x in (*draw.module.parameters(), *draw.tensors().values()))
    if state > _MAX_BYTES:
        return False
    result = estimate(draw)
    is_small = state + 3 * result.largest_bytes <= _MAX_BYTES and result.calls.total() <= _MAX_CALLS
    return is_small and least_us <= result.us <= _MAX_US


def _show(count: int) -> None:
    rows = [(split, drawn(seed, number)) for split, seed, number in order(count)]
    times = []
    for split, draw in rows:
        times.append(estimate(draw).us)
        facts = draw.facts()
        words = [
            facts["dtype"],
            facts["autocast"],
            "training" * draw.is_training,
            "channels last" * draw.is_channels_last,
        ]
        text = f"{' '.join(filter(None, [*words, 'tf32' * draw.tf32]))}: {draw.text}"
        print(f"{split:8s} {draw.number:3d} {draw.attempt:3d} {draw.family:9s} {times[-1]:8.0f} us  {text}")
    tenths = statistics.quantiles(times, n=10)
    print(f"{count} draws; tenths of estimated times: {', '.join(f'{us:.0f}' for us in tenths)} us")
    print(Counter(draw.family for _, draw in rows).most_common())


def coverage(count: int) -> Counter[str]:
    """Return in how many draws each operator runs, views apart."""
    result: Counter[str] = Counter()
    for _, seed, number in order(count):
        result.update(set(estimate(drawn(seed, number)).calls))
    return result


def _predict(count: int, arch: str) -> None:
    from gemm_eval.errors import GemmEvalError
    from gemm_eval.evaluate import GEMMEvaluator
    from gemm_eval.torch import predict_module

    evaluator, outcomes, unpriced = GEMMEvaluator(arch, l2="cold"), Counter[str](), Counter[str]()
    seconds: dict[str, list[float]] = {"eager": [], "inductor": []}
    for _, seed, number in order(count):
        draw = drawn(seed, number)
        for fusion, times in seconds.items():
            begin = time.perf_counter()
            try:
                with draw.settings(), torch.no_grad():
                    result = predict_module(draw.module, draw.tensors(), evaluator, fusion=fusion)
            except GemmEvalError as error:
                outcomes[f"{fusion}: refused: {type(error).__name__}: {str(error)[:110]}"] += 1
            except Exception as error:  # of torch, where shapes do not tell
                outcomes[
                    f"{fusion}: failed: {type(error).__name__}: {str(error)[:160]} ({draw.family} {seed} {number})"
                ] += 1
            else:
                outcomes[f"{fusion}: predicted"] += 1
                unpriced.update({f"{fusion}: {each.name}" for each in result.operations if each.bound == "unpriced"})
            times.append(time.perf_counter() - begin)
    for title, counts in (("draws", outcomes), ("draws with an operation that has no price", unpriced)):
        print(f"{title}:")
        for name, number in counts.most_common():
            print(f"{number:5d}  {name}")
    for fusion, times in seconds.items():
        print(
            f"{fusion}: {statistics.median(times):.2f} s in the median, {max(times):.1f} s at most, {sum(times):.0f} s"
        )


def main() -> None:
    """Show draws, their coverage of operators, or what `predict_module` says of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="how many draws, splits in turns")
    parser.add_argument("--coverage", action="store_true", help="operators, and how many draws have each")
    parser.add_argument("--predict", action="store_true", help="what predict_module says of them")
    parser.add_argument("--arch", default="h200-sxm", help="what --predict predicts for")
    options = parser.parse_args()
    if options.coverage:
        for name, number in coverage(options.count).most_common():
            print(f"{number:5d}  {name}")
    elif options.predict:
        _predict(options.count, options.arch)
    else:
        _show(options.count)


if __name__ == "__main__":
    main()
