"""AllocateProducerIds: blocks of producer ids, one request at a time.

Each block is a write of the controller to the API server, and clients may request ids without end.
The number of requests in an interval is therefore limited.
"""

import asyncio
import collections
import logging

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark_broker.control.session import ControllerSession, check
from tidemark_broker.producer_ids import ProducerIds

logger = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_PAUSE_S = 1.0
#: Number of blocks in an interval of seconds: 4,000 ids a second.
_BLOCKS, _WHILE_S = 20, 5.0


class AllocationPace:
    """Rate limit of requests for blocks. Pure; times in seconds of one clock."""

    def __init__(self) -> None:
        self._sent_s: collections.deque[float] = collections.deque(maxlen=_BLOCKS)

    def wait_s(self, now_s: float) -> float:
        """Return how long the next request must wait."""
        if len(self._sent_s) < _BLOCKS:
            return 0.0
        return max(0.0, self._sent_s[0] + _WHILE_S - now_s)

    def count(self, now_s: float) -> None:
        """Count a request that is sent now."""
        self._sent_s.append(now_s)


async def allocate_blocks(
    producer_ids: ProducerIds, connection: KafkaConnection, session: ControllerSession
) -> None:
    """Supply the broker with blocks of producer ids from the controller (KIP-730).

    Runs until the session ends (raises) or the task is cancelled. A block is requested whenever
    ``producer_ids.block_needed`` is set, which happens before the current block is used up.
    """
    now, pace = asyncio.get_running_loop().time, AllocationPace()
    while True:
        await producer_ids.block_needed.wait()
        # Waiting here delays only new producers. Those with an id continue.
        await asyncio.sleep(pace.wait_s(now()))
        pace.count(now())
        answer = await connection.request(
            control.AllocateProducerIdsRequest(
                broker_id=session.broker_id,
                broker_epoch=session.broker_epoch,
                session_token=session.token,
            ),
            control.AllocateProducerIdsResponse,
            _TIMEOUT_S,
        )
        # Temporary on the controller, for example while its API server is unavailable.
        if answer.error_code == int(ErrorCode.unknown_server_error):
            logger.warning("the controller has no producer ids now; retrying in %.0f s", _PAUSE_S)
            await asyncio.sleep(_PAUSE_S)
            continue
        check(answer.error_code, "AllocateProducerIds")
        await producer_ids.add(answer.producer_id_start, answer.producer_id_len)
