"""Architecture specs: frozen models, loaded from YAML by name or path."""

from gemm_eval.arch._loader import list_archs, load_arch
from gemm_eval.arch._multicore import MulticoreSpec, Provenance, ProvenanceKind, Published

__all__ = ["MulticoreSpec", "Provenance", "ProvenanceKind", "Published", "list_archs", "load_arch"]
