"""Architecture specs: frozen models, loaded from YAML by name or path."""

from gemm_eval.arch._check import CheckFinding, check_arch
from gemm_eval.arch._loader import list_archs, load_arch
from gemm_eval.arch._multicore import MulticoreSpec, Provenance, ProvenanceKind, Published

__all__ = [
    "CheckFinding",
    "MulticoreSpec",
    "Provenance",
    "ProvenanceKind",
    "Published",
    "check_arch",
    "list_archs",
    "load_arch",
]
