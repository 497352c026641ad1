"""The states that a GPU can be in when a kernel starts: the words that options, timings and files have for them."""

from __future__ import annotations

import enum


class L2State(enum.StrEnum):
    """What L2 holds. COLD: no weights, and A and C of the call before as far as they fit. WARM: all that fits."""

    COLD = "cold"
    COLD_ALL = "cold-all"
    WARM = "warm"


class ClockState(enum.StrEnum):
    """BURST: at most about 10 ms busy after idling. SUSTAINED: so long that the power limit has set the clock."""

    BURST = "burst"
    SUSTAINED = "sustained"


MEASURED_L2_STATES = (L2State.COLD, L2State.WARM)
"""States that timings are taken in; nothing at all in L2 is a state of the model alone."""
