"""Run each test that waits in an event loop on uvloop, as in production, and on asyncio's own
loop, which ``make test`` leaves out.
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.effort import IS_QUICK


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    production = {"uvloop": uvloop.new_event_loop}
    return production if IS_QUICK else {"asyncio": asyncio.new_event_loop, **production}
