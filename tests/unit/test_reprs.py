"""What a failing test or a notebook prints of a value is short, and says what matters."""

from __future__ import annotations

import numpy as np

from gemm_eval import GemmProblem, KernelConfig, MulticoreSpec, list_archs, list_models, load_arch, load_model
