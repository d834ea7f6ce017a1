"""The broker that the tests of the Apis talk to."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.api.api_broker import ApiBroker, running


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[ApiBroker]:
    """A broker with default configuration."""
    async with running(tmp_path / "log", {}) as made:
        yield made
