"""Hypothesis for all unit tests: no deadline, since the machine may be shared."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("kcoral", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kcoral")
