"""What the name of a CUTLASS 3 kernel tells of its tile.

Profilers leave long names as nvcc wrote them: mangled, but not as a demangler accepts it, so both spellings are read
here. Either way the main loop comes first: MainloopSm90...WarpSpecialized<stages, cluster, schedule>, tile, type of A.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["cutlass_tile"]

_INT = r"\s*cute::C<\s*(?:\(int\))?\s*(\d+)\s*>\s*"
_TUPLE = rf"cute::tuple<{_INT},{_INT},{_INT}>"
_PLAIN = re.compile(
    rf"WarpSpecialized\w*<\s*(?:\(int\))?\s*(\d+)\s*,\s*{_TUPLE}\s*,\s*[\w:]*?(Pingpong|Cooperative)\w*\s*>\s*,\s*{_TUPLE}"
)
_MANGLED = re.compile(
    r"WarpSpecializedILi(\d+)ENS\w?_IJ(\w+?)EEENS\w?_\d+Kernel\w*?(Pingpong|Cooperative)EEENS\w?_IJ(\w+?)EEE"
    r"NS_10bfloat16_tEPNS\w?_IJl\w*?E+S(\w*?)_S"
)
_ENTRY = re.compile(r"NS\w*?_(?:1C)?ILi(\d+)EEE|S([0-9A-Z]*)_")


def cutlass_tile(name: str) -> dict[str, Any]:
    """Return cta_m, cta_n, cta_k, cluster_m, cluster_n, num_stages and schedule of a kernel for Hopper.

    Empty where the name does not tell.
    """
    if found := _PLAIN.search(name):
        stages, cluster_m, cluster_n, _, schedule, m, n, k = found.groups()
    elif found := _MANGLED.search(name):
        stages, cluster, schedule, tile, a_type = found.groups()
        cluster_m, cluster_n = (size for size, _ in _ENTRY.findall(cluster)[:2])
        m, n, k = _sizes(tile, a_type)
    else:
        return {}
    return {
        "cta_m": int(m),
        "cta_n": int(n),
        "cta_k": int(k),
        "cluster_m": int(cluster_m),
        "cluster_n": int(cluster_n),
        "num_stages": int(stages),
        "schedule": schedule.lower(),
    }


def _sizes(tile: str, a_type: str) -> list[str]:
    """The three sizes of a mangled tuple, whose later ones may stand for an earlier one.

    Each new size is numbered as it comes, then the tuple, then the type of A, whose number is known from its next use
    (Itanium C++ ABI, 5.1.8: S_ is 0, S0_ is 1, in base 36).
    """
    entries = _ENTRY.findall(tile)
    new = [size for size, _ in entries if size]
    first = _number(a_type) - len(new) - 1
    return [size or new[_number(earlier) - first] for size, earlier in entries]


def _number(substitution: str) -> int:
    return int(substitution, 36) + 1 if substitution else 0
