"""Hypothesis for all unit tests: no deadline, since the machine may be shared.

The same examples every time, so that a change is judged by what it changed; ``KCORAL_EXPLORE=1`` looks for new ones.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "kcoral",
    deadline=None,
    derandomize="KCORAL_EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kcoral")
