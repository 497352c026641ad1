"""All kernels of one GEMM with 4-bit weights, timed on this machine's GPU, and how far a choice is from the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gemm_eval.device import Timing, TimingProtocol, measure_floor_us
from gemm_eval.errors import GemmEvalError
from gemm_eval.evaluate import progress_bar
from gemm_eval.mapping import KernelConfig
from gemm_eval.measure.kernel_shapes import QuantShape
from gemm_eval.measure.protocol import measure_shape
from gemm_eval.measure.runners import BuildsKernels, BuiltKernel, Runner
from gemm_eval.measure.runners.w4a16_weights import packed_sizes
from gemm_eval.measure.shapes import KernelItem

__all__ = ["Profile", "ProfiledKernel", "profile_kernels"]

_POOL_BYTES = 1 << 30
_NUM_FINALISTS = 10


class ProfiledKernel(NamedTuple):
    """One kernel: its time, and its build and launch."""

    config: KernelConfig
    timing: Timing
    built: BuiltKernel


@dataclass(frozen=True)
class Profile:
    """All kernels of one GEMM.

    Attributes:
        gemm: sizes and weights.
        kernels: fastest first; the first ones, and the choices asked about, are timed by the full protocol.
        errors: why a config could not be timed.
    """

    gemm: QuantShape
    kernels: tuple[ProfiledKernel, ...]
    errors: dict[KernelConfig, str]

    @property
    def bytes_moved(self) -> int:
        """Packed weights and scales, A and C, once each."""
        sizes = packed_sizes(self.gemm)
        return sizes.qweight_bytes + sizes.scales_bytes + 2 * self.gemm.M * (self.gemm.K + self.gemm.N)

    def find(self, config: KernelConfig) -> tuple[int, ProfiledKernel] | None:
        """Return place (from 0) and time of a config, or None if it was not timed."""
        for place, kernel in enumerate(self.kernels):
            if kernel.config == config:
                return place, kernel
        return None


def profile_kernels(
    runner: Runner,
    items: Sequence[KernelItem],
    choices: Sequence[KernelConfig],
    *,
    l2: str = "cold",
    progress: bool | None = None,
) -> Profile:
    """Time every item by short replays, then the fastest ones and `choices` by the full protocol.

    Args:
        runner: one that builds its kernels.
        items: the kernels of one GEMM.
        choices: configs among them whose times are to be exact whatever their place.
        l2: ``cold`` or ``warm``.
        progress: show a progress bar on stderr; None: if stderr is a terminal.

    Raises:
        GemmEvalError: there is no item, or none could be timed, or a check failed.
    """
    if not items or not isinstance(runner, BuildsKernels):
        raise GemmEvalError("no kernel can run this GEMM on this GPU")
    runner.build(items)
    runner.allocate(items, _POOL_BYTES)
    runner.check()
    floor_us = measure_floor_us(runner)
    found: dict[KernelConfig, ProfiledKernel] = {}
    errors: dict[KernelConfig, str] = {}
    best_us: float | None = None
    with progress_bar(len(items) + _NUM_FINALISTS, "kernels", progress) as advance:
        for item in items:
            try:
                timing = measure_shape(runner, item, TimingProtocol.quick(l2=l2), floor_us=floor_us, best_us=best_us)
                found[item.config] = ProfiledKernel(item.config, timing, runner.built(item))
                best_us = min(timing.latency_us, best_us or timing.latency_us)
            except Exception as error:  # other kernels may work: what is wrong with this one is told at the end
                errors[item.config] = f"{type(error).__name__}: {error}"
            advance(1)
        if not found:
            raise GemmEvalError(f"no kernel could be timed; the first: {next(iter(errors.values()))}")
        quick = sorted(found, key=lambda config: found[config].timing.latency_us)
        finalists = dict.fromkeys([*quick[:_NUM_FINALISTS], *(config for config in choices if config in found)])
        for config in finalists:
            item = items[0]._replace(config=config)
            timing = measure_shape(runner, item, TimingProtocol(l2=l2), floor_us=floor_us)
            found[config] = found[config]._replace(timing=timing)
            advance(1)
    ranked = sorted(found.values(), key=lambda kernel: kernel.timing.latency_us)
    return Profile(QuantShape(*items[0][:6]), tuple(ranked), errors)
