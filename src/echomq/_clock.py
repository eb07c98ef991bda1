"""Clocks of this machine. Instants that other machines see come from the server only."""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def lasting() -> float:
        """Seconds on a clock that goes on while the machine is suspended, as a lock's expiry on the server does."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    lasting = time.monotonic
