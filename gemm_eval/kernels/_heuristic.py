"""Which kernel a GEMM takes when the caller names none: fixed rules, no measurement and no cost model."""

from __future__ import annotations

from gemm_eval.errors import UnsupportedError
from gemm_eval.kernels._family import DeviceLimits, Sizes, Variant, ceil_div
from gemm_eval.kernels._registry import families, legal_splits, why_not
from gemm_eval.mapping import Decomposition, KernelConfig

__all__ = ["choose"]

_FEW_TOKENS = 16
_FOR_FEW_TOKENS = ("w4a16_gemv_mma", "w4a16_gemv", "w4a16_sm90", "w4a16_sm80")
_FOR_MANY_TOKENS = ("w4a16_sm90", "w4a16_sm80", "w4a16_gemv_mma", "w4a16_gemv")
_TILE_COLUMNS = 128
_MAX_TILE_TOKENS = 128
_WAVES_OF_FEW_TOKENS = 2


def choose(sizes: Sizes, variant: Variant, limits: DeviceLimits) -> KernelConfig:
    """Return a good kernel for a GEMM, with how K is cut.

    Few tokens: kernels that read the weights as fast as they can, cut along K until there are two waves of CTAs. Else
    tiles of 128 columns and as many tokens as there are, up to 128, with stream-K where they do not fill the GPU.

    Args:
        sizes: of the GEMM, in elements.
        variant: any with its activations, mode and group size; its config is not looked at.
        limits: of the GPU.

    Raises:
        UnsupportedError: no kernel can run it on this GPU.
    """
    known = families()
    is_few = sizes.M <= _FEW_TOKENS
    for name in _FOR_FEW_TOKENS if is_few else _FOR_MANY_TOKENS:
        family = known[name]
        made = [variant._replace(config=config) for config in family.configs()]
        kernels = [kernel for kernel in made if why_not(kernel, sizes, limits) is None]
        if kernels:
            best = min(kernels, key=lambda kernel: _distance(kernel.config, sizes))
            return _with_split(best, sizes, limits, is_few)
    raise UnsupportedError(
        f"no W4A16 kernel can run M={sizes.M}, K={sizes.K}, N={sizes.N} on a GPU of compute capability "
        f"{'.'.join(map(str, limits.compute_capability))}; list_kernels says why"
    )


def _distance(config: KernelConfig, sizes: Sizes) -> tuple[int, ...]:
    """How far a kernel is from what the rules want; smallest first, so no kernel must fit exactly."""
    wanted = min(1 << (sizes.M - 1).bit_length(), _MAX_TILE_TOKENS)
    passes = ceil_div(wanted, config.cta_m)
    return (
        passes * max(config.cta_m, wanted),
        abs(config.cta_n - _TILE_COLUMNS),
        config.cluster_m * config.cluster_n,
        -config.num_stages * config.cta_k,
    )


def _with_split(kernel: Variant, sizes: Sizes, limits: DeviceLimits, is_few: bool) -> KernelConfig:
    splits = [split.config for split in legal_splits(kernel, sizes, limits)]
    tiles = ceil_div(sizes.M, kernel.config.cta_m) * ceil_div(sizes.N, kernel.config.cta_n)
    wanted = limits.num_sms * (_WAVES_OF_FEW_TOKENS if is_few else 1)
    if tiles >= wanted:
        return kernel.config
    for config in splits:
        if config.decomposition is Decomposition.STREAM_K:
            return config
    enough = [config for config in splits if tiles * config.split_k >= wanted]
    if enough:
        return min(enough, key=lambda config: config.split_k)
    return max(splits, key=lambda config: config.split_k)
