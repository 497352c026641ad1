"""The families of W4A16 kernels, one module each: `Family` is what each says about itself.

A new family is a module here, a line in `_FAMILIES`, and a CUDA source in the folder cuda.
"""

from functools import cache
from importlib import import_module

from gemm_eval.errors import InvalidMappingError
from gemm_eval.kernels.families.base import (
    TARGETS_THAT_RAN,
    Family,
    Fusion,
    Launch,
    Operands,
    Sizes,
    TensorMapOf,
    Variant,
    WeightMode,
    ceil_div,
)
from gemm_eval.kernels.families.grouped import Choices, GroupedFamily, GroupedOperands, GroupedSizes
from gemm_eval.mapping import KernelConfig
from gemm_eval.words import refusal

__all__ = [
    "TARGETS_THAT_RAN", "Choices", "Family", "Fusion", "GroupedFamily", "GroupedOperands", "GroupedSizes", "Launch",
    "Operands", "Sizes", "TensorMapOf", "Variant", "WeightMode", "ceil_div", "families", "family_of", "fp8_families",
    "grouped_families",
]  # fmt: skip

# Modules of the families and their classes, from few tokens to many; then those of e4m3 tokens, and of grouped GEMMs.
_FAMILIES = (
    ("gemv", "GemvFamily"), ("gemv", "GemvMmaFamily"), ("sm80", "Sm80Family"), ("sm90", "Sm90Family"),
    ("sm90", "Sm90ClusterFamily"),
)  # fmt: skip
_FP8 = (("sm90_fp8", "Sm90Fp8Family"),)
_GROUPED = (("grouped", "GemvMmaGroupedFamily"), ("grouped", "Sm80GroupedFamily"), ("grouped", "Sm90GroupedFamily"))


@cache
def families() -> dict[str, Family]:
    """All families of one GEMM by name, those for few tokens first."""
    return _made(_FAMILIES)


@cache
def fp8_families() -> dict[str, Family]:
    """All families of one GEMM whose tokens are e4m3, by name."""
    return _made(_FP8)


@cache
def grouped_families() -> dict[str, GroupedFamily]:
    """All families of grouped GEMMs by name."""
    return {name: family for name, family in _made(_GROUPED).items() if isinstance(family, GroupedFamily)}


def _made(classes: tuple[tuple[str, str], ...]) -> dict[str, Family]:
    made = [getattr(import_module(f"gemm_eval.kernels.families.{module}"), name)() for module, name in classes]
    return {family.name: family for family in made}


def family_of(config: KernelConfig) -> Family:
    """Return the family that `config` names, of one GEMM or of groups."""
    all_families = families() | fp8_families() | grouped_families()
    family = all_families.get(config.family) if isinstance(config.family, str) else None
    if family is None:
        raise InvalidMappingError(refusal("config.family", config.family, all_families), rule="family")
    return family
