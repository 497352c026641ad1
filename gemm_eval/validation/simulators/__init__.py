"""Our multi-core model beside other simulators, on chips of one core and GEMMs that all of them express.

`work` has the chips and the GEMMs; `ours`, `zigzag` and `scalesim` count a GEMM on a chip, each by its simulator;
`spaces` searches what other rules of tiling would move; `causes` says why two counts differ, by rules that are checked
on numbers; `table` puts all of it side by side. The simulators need the extra `simulators`, in an environment of its
own: `make compare`.
"""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.validation.simulators.causes import LARGE_FRAC, Cause, Reason
    from gemm_eval.validation.simulators.spaces import Rules, least_bytes
    from gemm_eval.validation.simulators.table import (
        QUANTITIES,
        SIMULATORS,
        Difference,
        SideBySide,
        compare_simulators,
        simulators_frame,
    )
    from gemm_eval.validation.simulators.work import CHIPS, GEMMS, Chip, Counted, Gemm, Traffic, find_chips

__all__ = [
    "CHIPS", "GEMMS", "LARGE_FRAC", "QUANTITIES", "SIMULATORS", "Cause", "Chip", "Counted", "Difference", "Gemm",
    "Reason", "Rules", "SideBySide", "Traffic", "compare_simulators", "find_chips", "least_bytes", "simulators_frame",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".causes": ("LARGE_FRAC", "Cause", "Reason"),
        ".spaces": ("Rules", "least_bytes"),
        ".table": ("QUANTITIES", "SIMULATORS", "Difference", "SideBySide", "compare_simulators", "simulators_frame"),
        ".work": ("CHIPS", "GEMMS", "Chip", "Counted", "Gemm", "Traffic", "find_chips"),
    },
)
