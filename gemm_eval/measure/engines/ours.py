"""The kernels of this library, by `config="auto"`: what the cost model chooses, nothing profiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from gemm_eval.device import limits_of_device
from gemm_eval.kernels import PackedW4, Sizes, Variant, choose, make_variant, pack_w4, spec_of_device, w4a16_gemm
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.measure.engines.base import Bound, Engine, with_version
from gemm_eval.measure.engines.operands import DenseGemm, Weights
from gemm_eval.measure.runners.w4a16_builds import build_all

__all__ = ["OurEngine", "kernel_in_short"]


class OurEngine(Engine[PackedW4]):
    """`w4a16_gemm(A, packed, out=C)`."""

    name: ClassVar[str] = "ours"

    def describe(self) -> str:
        """See `Engine`."""
        return with_version("gemm_eval")

    def prepare(self, gemms: Sequence[DenseGemm]) -> None:
        """See `Engine`: on all cores of this machine, into the cache of compiled kernels."""
        build_all(list(dict.fromkeys(map(_variant, gemms))), limits_of_device(0))

    def pack(self, weights: Weights) -> PackedW4:
        """See `Engine`."""
        return pack_w4(
            weights.integers.T, weights.group_size, "group", scales=weights.scales.T, activation=weights.activation
        )

    def copy(self, packed: PackedW4) -> PackedW4:
        """See `Engine`."""
        return replace(packed, qweight=packed.qweight.copy(), scales=packed.scales.copy())

    def num_bytes(self, packed: PackedW4) -> int:
        """See `Engine`."""
        return packed.nbytes

    def bind(self, gemm: DenseGemm) -> Bound:
        """See `Engine`."""
        a, c = self.operands.inputs(gemm.M, gemm.K), self.operands.output(gemm.M, gemm.N)
        calls = [partial(w4a16_gemm, a, packed, out=c, stream=self.device.stream) for packed in self.copies]
        return Bound(calls, lambda: c, str(gemm.activation), kernel_in_short(_chosen(gemm)))


def _chosen(gemm: DenseGemm) -> KernelConfig:
    sizes = Sizes(gemm.M, gemm.K, gemm.N)
    return choose(sizes, gemm.activation, gemm.mode, gemm.group_size, spec_of_device(0), limits_of_device(0))


def _variant(gemm: DenseGemm) -> Variant:
    """What is compiled: it does not depend on how K is cut."""
    config = _chosen(gemm)._replace(decomposition=Decomposition.DATA_PARALLEL, split_k=1)
    return make_variant(config, gemm.activation, gemm.mode, gemm.group_size)


def kernel_in_short(config: KernelConfig) -> str:
    """What a config of ours is, for people."""
    cut = {Decomposition.SPLIT_K: f" split-K {config.split_k}", Decomposition.STREAM_K: " stream-K"}
    return (
        f"{config.cta_m}x{config.cta_n}x{config.cta_k} {config.cluster_m}x{config.cluster_n} {config.num_stages} "
        f"{config.num_warps} {config.schedule.name.lower()}{cut.get(config.decomposition, '')} {config.family}"
    )
