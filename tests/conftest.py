"""Tests run side by side, one process per core (``make test``); those that share a server stay
together.

A server that a whole session shares is started once in each process whose tests ask for it. So all
tests of one server go to the same process; every other test goes wherever there is room.
"""

import pytest
from hypothesis import HealthCheck, settings

#: The one Hypothesis profile. Machines that run tests are slow and shared, so no example has a
#: deadline; a fixture may be the same for every example of a test. A test says at most how much it
#: tries.
settings.register_profile(
    "tidemark",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("tidemark")

#: Fixtures that start what many tests share, the dearest first: the first that a test asks for
#: is the group it runs in.
SHARED = ("cluster", "examples_cluster", "control_plane", "minio", "session", "jars")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        shared = next((name for name in SHARED if name in names), None)
        if shared is not None:
            item.add_marker(pytest.mark.xdist_group(shared))
