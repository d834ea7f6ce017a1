"""A broker whose Broker object was deleted stops as quickly as any other."""

import time

import pytest

from tests.integration.broker.broker_process import StartBrokers
from tests.integration.broker.scripted_controller import ScriptedController


@pytest.mark.parametrize("is_refused_already", [False, True])
async def test_broker_that_the_controller_refuses_stops_at_once(
    controller: ScriptedController, start_brokers: StartBrokers, is_refused_already: bool
) -> None:
    [broker, other] = await start_brokers(1, 2)
    await controller.create_topic("t", [(1, 2)])
    # From now on the controller refuses the broker's registration.
    controller.deleted.add(1)
    del controller.brokers[1]
    if is_refused_already:
        await controller.until(lambda: "registration refused" in broker.log_text())
    began_s = time.monotonic()
    assert await broker.stop() == 0
    # A controlled shutdown would wait longer for a controller that never answers.
    assert time.monotonic() - began_s < 8
    assert await other.stop() == 0
