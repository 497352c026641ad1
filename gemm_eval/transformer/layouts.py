"""Legal degrees of parallelism of a model on a number of devices, for training and for serving."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from gemm_eval.checks import as_integer
from gemm_eval.errors import InvalidOptionError
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.shapes import Step, layer_shapes

_MAX_DEVICES = 1 << 20


class Layout(NamedTuple):
    """Degrees of parallelism. Ranks are dealt to devices in Megatron's order: tensor, context, data, then pipeline.

    The product of all degrees but `expert` is the number of devices. Experts are spread over `expert` devices of the
    tensor-, context- and data-parallel ones of a pipeline stage.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def num_expert_replicas(self) -> int:
        """Devices of a pipeline stage that hold the same experts, or the same part of them."""
        return self.tensor * self.context * self.data // max(self.expert, self.tensor)

    def __str__(self) -> str:
        names = zip(("TP", "PP", "CP", "EP", "DP"), self, strict=True)
        return " ".join(f"{name}{degree}" for name, degree in names if degree > 1) or "one device"


@lru_cache(maxsize=4096)
def divides(config: ModelConfig, tensor_parallel: int, expert_parallel: int = 1) -> bool:
    """Return True where heads, widths and experts of a model divide by these degrees."""
    try:
        for _ in layer_shapes(config, Step(config.name, 1, 1, 1, tensor_parallel, expert_parallel)):
            pass
    except InvalidOptionError:
        return False
    return True


def legal_layouts(
    config: ModelConfig, num_devices: int, *, max_tensor: int = 8, max_context: int = 1,
    tensor: Iterable[int] | None = None, pipeline: Iterable[int] | None = None, context: Iterable[int] | None = None,
    expert: Iterable[int] | None = None, data: Iterable[int] | None = None,
) -> Iterator[Layout]:  # fmt: skip
    """Yield each layout of a model on exactly `num_devices` devices, tensor parallelism outermost.

    Args:
        max_tensor: largest tensor-parallel degree: devices that share a fast link.
        max_context: largest context-parallel degree; 1: sequences are not divided.
        tensor, pipeline, context, expert, data: degrees to which the search is limited; None: all that divide.

    Raises:
        InvalidOptionError: `num_devices` is no positive number.
    """
    num = as_integer("num_devices", num_devices, 1, _MAX_DEVICES)
    num_experts = 1 if config.moe is None else config.moe.num_experts
    for tp in _degrees(num, min(max_tensor, num), tensor):
        if not divides(config, tp):
            continue
        for pp in _degrees(num // tp, config.num_layers + 2, pipeline):
            rest = num // tp // pp
            for cp in _degrees(rest, max_context, context):
                dp = rest // cp
                if data is not None and dp not in data:
                    continue
                for ep in _degrees(tp * rest, num_experts, expert):
                    if divides(config, tp, ep):
                        yield Layout(tp, pp, cp, ep, dp)


@lru_cache(maxsize=4096)
def _divisors(num: int) -> Sequence[int]:
    return tuple(divisor for divisor in range(1, num + 1) if num % divisor == 0)


def _degrees(num: int, at_most: int, asked: Iterable[int] | None) -> Sequence[int]:
    wanted = None if asked is None else set(asked)
    return [d for d in _divisors(num) if d <= at_most and (wanted is None or d in wanted)]
