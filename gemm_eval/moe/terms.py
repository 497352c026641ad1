"""Terms of a layer of experts besides its GEMMs, by the model of the arch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec
from gemm_eval.errors import UnsupportedError
from gemm_eval.models.gpu import MOE_LAYER, coefficients_for, library_of
from gemm_eval.models.gpu import layer_terms as gpu_layer_terms
from gemm_eval.models.multicore import layer_terms as multicore_layer_terms
from gemm_eval.workload import GemmTypes, MoeWork

BREAKDOWN = (
    "routing_us", "permute_us", "quantize_us", "gemm1_us", "activation_us", "gemm2_us", "finalize_us", "shared_us",
)  # fmt: skip
"""The terms of a layer's time, in the order they run; they add up to it."""


def layer_terms(arch: ArchSpec, library: str | None, work: MoeWork) -> Mapping[str, npt.NDArray[Any]]:
    """Return the terms besides the GEMMs, in us, in the shape of the sizes of `work`.

    A rank without an assignment routes, because it must see that it has none; its other terms are 0. `library` says
    whose kernels run the GEMMs on a GPU; None: nothing runs there.
    """
    if isinstance(arch, MulticoreSpec):
        return multicore_layer_terms(arch, work)
    times = gpu_layer_terms(arch, coefficients_of(arch, library, work.types), work)
    is_busy = np.asarray(work.local_rows) > 0
    return {name: us if name == "routing_us" else us * is_busy for name, us in times.items()}


@lru_cache(maxsize=256)
def coefficients_of(arch: GpuSpec, library: str | None, types: GemmTypes) -> Mapping[str, float]:
    """Return the coefficients of the library's family, and those of a layer, with defaults where it has none."""
    defaults = {item.name: item.default for item in MOE_LAYER}
    if library is None:
        return defaults
    rules = library_of(library.partition("/")[0])
    try:
        family = rules.family(arch, types)
    except UnsupportedError:  # whose kernels of experts are not known to have a layer
        return defaults
    coefficients = coefficients_for(arch, rules.name, family)[0]
    return coefficients if "moe_fixed_us" in coefficients else defaults | coefficients
