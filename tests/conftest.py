"""Tests run side by side, one process per core (``make test``); those that share a server stay together.

A server that a whole session shares is started once in each process whose tests ask for it. So all
tests of one server go to the same process; every other test goes wherever there is room.
"""

import pytest

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
