"""The families of W4A16 kernels, one module each: `Family` is what each says about itself.

A new family is a module here, a line in `_FAMILIES`, and a CUDA source in the folder cuda.
"""

from functools import cache
from importlib import import_module

from gemm_eval.errors import InvalidMappingError
from gemm_eval.kernels.families.base import (
    TARGETS_THAT_RAN,
    Family,
    Launch,
    Operands,
    Sizes,
    TensorMapOf,
    Variant,
    WeightMode,
    ceil_div,
)
from gemm_eval.mapping import KernelConfig
from gemm_eval.words import refusal

__all__ = [
    "TARGETS_THAT_RAN",
    "Family",
    "Launch",
    "Operands",
    "Sizes",
    "TensorMapOf",
    "Variant",
    "WeightMode",
    "ceil_div",
    "families",
    "family_of",
]

# Modules of the families and their classes, from few tokens to many.
_FAMILIES = (
    ("gemv", "GemvFamily"),
    ("gemv_mma", "GemvMmaFamily"),
    ("sm80", "Sm80Family"),
    ("sm90", "Sm90Family"),
    ("sm90", "Sm90ClusterFamily"),
)


@cache
def families() -> dict[str, Family]:
    """All families by name, those for few tokens first."""
    made = [getattr(import_module(f"gemm_eval.kernels.families.{module}"), name)() for module, name in _FAMILIES]
    return {family.name: family for family in made}


def family_of(config: KernelConfig) -> Family:
    """Return the family that `config` names.

    Raises:
        InvalidMappingError: there is no such family.
    """
    family = families().get(config.family) if isinstance(config.family, str) else None
    if family is None:
        raise InvalidMappingError(refusal("config.family", config.family, families()), rule="family")
    return family
