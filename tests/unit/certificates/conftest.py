import pytest

from tests.unit.certificates.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
