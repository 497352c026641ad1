"""What a shell completes: names of archs, models and types. Nothing heavy is imported, since a shell waits for it."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "complete_archs",
    "complete_gpus",
    "complete_measured_chips",
    "complete_measured_gpus",
    "complete_models",
    "complete_multicore",
    "complete_schemes",
    "complete_types",
]

_GPUS, _MULTICORE, _MODELS = "gpu", "multicore", "models"
_ALL = "all"


def complete_archs(incomplete: str) -> list[str]:
    """Return the archs whose names begin so."""
    return _presets(incomplete, _GPUS, _MULTICORE)


def complete_gpus(incomplete: str) -> list[str]:
    """Return the GPUs whose names begin so."""
    return _presets(incomplete, _GPUS)


def complete_multicore(incomplete: str) -> list[str]:
    """Return the multi-core chips whose names begin so."""
    return _presets(incomplete, _MULTICORE)


def complete_measured_gpus(incomplete: str) -> list[str]:
    """Return the GPUs with timings whose names begin so, and the word for all of them."""
    return _begun(incomplete, [*_measured(_GPUS), _ALL])


def complete_measured_chips(incomplete: str) -> list[str]:
    """Return the multi-core chips with timings whose names begin so, and the word for all of them."""
    return _begun(incomplete, [*_measured(_MULTICORE), _ALL])


def complete_models(incomplete: str) -> list[str]:
    """Return the models whose names begin so."""
    return _presets(incomplete, _MODELS)


def complete_types(incomplete: str) -> list[str]:
    """Return the types of one operand that begin so."""
    from gemm_eval.dtypes import DType

    return _begun(incomplete, (str(dtype) for dtype in DType if dtype.is_operand or dtype.is_weight))


def complete_schemes(incomplete: str) -> list[str]:
    """Return the types of both operands, and the shorthands for them, that begin so."""
    from gemm_eval.dtypes import SHORTHANDS, DType

    return _begun(incomplete, [*(str(dtype) for dtype in DType if dtype.is_operand), *SHORTHANDS])


def _presets(incomplete: str, *folders: str) -> list[str]:
    from gemm_eval.arch import preset_files

    return _begun(incomplete, sorted(preset_files(*folders)))


def _measured(folder: str) -> list[str]:
    from gemm_eval.arch import data_root

    return [name for name in _presets("", folder) if (data_root() / "measured" / name).is_dir()]


def _begun(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
