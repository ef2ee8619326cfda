"""What all tests share: Hypothesis profiles. `HYPOTHESIS_PROFILE=long` looks ten times longer."""

import os

from hypothesis import HealthCheck, settings

# No deadline: a shared machine stalls now and then, and a timed test is no test.
settings.register_profile("default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
