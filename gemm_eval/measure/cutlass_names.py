"""What the name of a CUTLASS 3 kernel tells of its tile."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["cutlass_tile"]

_INT = r"\s*cute::C<\s*(?:\(int\))?\s*(\d+)\s*>\s*"
_TUPLE = rf"cute::tuple<{_INT},{_INT},{_INT}>"
# MainloopSm90ArrayTmaGmmaWarpSpecialized<stages, cluster, schedule>, tile, ...
_MAINLOOP = re.compile(
    rf"WarpSpecialized\w*<\s*(?:\(int\))?\s*(\d+)\s*,\s*{_TUPLE}\s*,\s*[\w:]*?(Pingpong|Cooperative)\w*\s*>\s*,\s*{_TUPLE}"
)


def cutlass_tile(name: str) -> dict[str, Any]:
    """Return cta_m, cta_n, cta_k, cluster_m, cluster_n, num_stages and schedule of a kernel for Hopper.

    Empty where the name does not tell.
    """
    found = _MAINLOOP.search(name)
    if found is None:
        return {}
    stages, cluster_m, cluster_n, _, schedule, m, n, k = found.groups()
    return {
        "cta_m": int(m),
        "cta_n": int(n),
        "cta_k": int(k),
        "cluster_m": int(cluster_m),
        "cluster_n": int(cluster_n),
        "num_stages": int(stages),
        "schedule": schedule.lower(),
    }
