"""A scripted controller and a way to start brokers under it; all of them end with the test."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker.broker_process import BrokerProcess, StartBrokers
from tests.integration.broker.scripted_controller import ScriptedController


@pytest.fixture
async def controller() -> AsyncIterator[ScriptedController]:
    scripted = await ScriptedController().start()
    yield scripted
    await scripted.close()


@pytest.fixture
async def start_brokers(
    controller: ScriptedController, tmp_path: Path
) -> AsyncIterator[StartBrokers]:
    started: list[BrokerProcess] = []

    async def start(
        *nodes: int, kind: type[BrokerProcess] = BrokerProcess, **config: Any
    ) -> list[BrokerProcess]:
        brokers = [kind(node, tmp_path, [controller.port], **config) for node in nodes]
        started.extend(brokers)
        # Start all of them before waiting, so that they boot in parallel.
        for broker in brokers:
            await broker.launch()
        for broker in brokers:
            await broker.wait_ready()
        return brokers

    yield start
    for broker in started:
        # A test that failed may leave brokers running.
        if broker.process is not None and broker.process.returncode is None:
            await broker.kill()
