"""Architecture specs: frozen models, loaded from YAML by name or path."""

from gemm_eval.arch._check import CheckFinding, check_arch
from gemm_eval.arch._common import Provenance, ProvenanceKind, Published
from gemm_eval.arch._gpu import SM_ARCHS, ClockState, GpuSpec
from gemm_eval.arch._gpu_names import gpu_slug
from gemm_eval.arch._loader import ArchSpec, list_archs, load_arch
from gemm_eval.arch._multicore import MulticoreSpec
from gemm_eval.arch._paths import data_root
from gemm_eval.arch._yaml import read_yaml

__all__ = [
    "SM_ARCHS",
    "ArchSpec",
    "CheckFinding",
    "ClockState",
    "GpuSpec",
    "MulticoreSpec",
    "Provenance",
    "ProvenanceKind",
    "Published",
    "check_arch",
    "data_root",
    "gpu_slug",
    "list_archs",
    "load_arch",
    "read_yaml",
]
