"""AllocateProducerIds: blocks of producer ids, asked for over the request connection, one at a
time."""

import asyncio
import logging

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark_broker.control.errors import check
from tidemark_broker.control.session import Session
from tidemark_broker.producer_ids import ProducerIds

logger = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_PAUSE_S = 1.0


async def allocate_blocks(
    producer_ids: ProducerIds, connection: KafkaConnection, session: Session
) -> None:
    """Ask for a block whenever one is wanted, until the session ends (raises) or the task is
    cancelled."""
    while True:
        await producer_ids.wanted.wait()
        answer = await connection.request(
            control.AllocateProducerIdsRequest(
                broker_id=session.broker_id,
                broker_epoch=session.broker_epoch,
                session_token=session.token,
            ),
            control.AllocateProducerIdsResponse,
            _TIMEOUT_S,
        )
        if answer.error_code == int(ErrorCode.unknown_server_error):
            logger.warning("the controller has no producer ids at present: asking again")
            await asyncio.sleep(_PAUSE_S)
            continue
        check(answer.error_code, "AllocateProducerIds")
        await producer_ids.add(answer.producer_id_start, answer.producer_id_len)
