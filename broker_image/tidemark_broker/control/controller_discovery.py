"""Discovery of the leading controller: all addresses are queried concurrently until one leads.

An operator that has stopped, or whose machine is down, does not answer. Queried one after another,
each such address would delay the broker for seconds. A standby would also learn late that the
broker lives, and could lead over a cluster that it does not know yet. Each address is therefore
queried separately over a persistent connection. The broker registers at the first one that does not
answer NOT_CONTROLLER. A query registers nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark.backoff import Backoff
from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark.wire.framing import FrameError

logger = logging.getLogger(__name__)

Address = tuple[str, int]

#: Time-out of a connection attempt, after which the address is dialled again.
DIAL_S = 3.0
#: Time-out of an answer, which needs no decision on the other side.
ANSWER_S = 3.0
#: Pause before a standby is queried again. It may take over at any time.
ASK_AGAIN_S = 0.5
LATER_S = 1.0
LONGEST_PAUSE_S = 1.0
_PAUSES = Backoff(first_s=0.1, most_s=LONGEST_PAUSE_S)
_NO_EPOCH = -1


class FoundController(NamedTuple):
    """The leading controller and the connection to it, which the caller closes."""

    address: Address
    connection: KafkaConnection


class ControllerFinder:
    """Queries of all addresses. Used from the loop only.

    ``connect`` dials an address and raises ``OSError``, ``TimeoutError`` or ``FrameError``.
    """

    def __init__(
        self,
        broker_id: int,
        addresses: tuple[Address, ...],
        connect: Callable[[Address], Awaitable[KafkaConnection]],
    ) -> None:
        self._broker_id = broker_id
        self._addresses = addresses
        self._connect = connect
        #: Last problem of each address, so that only new problems are logged.
        self._problems: dict[Address, str] = {}

    async def find(self, *, last: Address | None = None) -> FoundController:
        """Wait until one of the addresses leads, and return it with its open connection.

        All addresses are queried concurrently, without a time-out. ``last`` led before but created
        no session, because it hangs or was superseded. It is queried :data:`LATER_S` seconds later
        than the others. The caller closes the returned connection.
        """
        looking = [
            asyncio.ensure_future(self._look(address, LATER_S if address == last else 0.0))
            for address in self._addresses
        ]
        first: FoundController | None = None
        try:
            try:
                # Each task only ends with a leader, so the first one that is done is the result.
                await asyncio.wait(looking, return_when=asyncio.FIRST_COMPLETED)
                first = next(task for task in looking if task.done()).result()
            finally:
                for task in looking:
                    task.cancel()
                # Several may have answered in the same iteration of the event loop. One connection
                # is used.
                for other in await asyncio.gather(*looking, return_exceptions=True):
                    if isinstance(other, FoundController) and other is not first:
                        other.connection.abort()
        # Cancelled after a leader was found: nothing else would close its connection.
        except BaseException:
            if first is not None:
                first.connection.abort()
            raise
        return first

    async def _look(self, address: Address, after_s: float) -> FoundController:
        """Connect to one address repeatedly until it leads, and return the connection.

        ``after_s`` delays the first attempt in seconds. Ends only with a leader or by cancellation.
        """
        failures = 0
        # Gives the other addresses a chance to answer first.
        await asyncio.sleep(after_s)
        while True:
            try:
                connection = await self._connect(address)
                await self._wait_until_leading(connection)
            except (OSError, TimeoutError, FrameError) as error:
                self._note_problem(address, error)
            except Exception:
                logger.exception("the query of the controller at %s:%d failed", *address)
            else:
                self._problems.pop(address, None)
                return FoundController(address, connection)
            # The pause grows with each failed attempt, up to :data:`LONGEST_PAUSE_S`.
            failures += 1
            await asyncio.sleep(_PAUSES.pause_s(failures))

    async def _wait_until_leading(self, connection: KafkaConnection) -> None:
        """Wait until the other side leads. On any error the connection is closed."""
        try:
            while not await self._leads(connection):  # noqa: ASYNC110 - a standby sends no event
                await asyncio.sleep(ASK_AGAIN_S)
        except BaseException:
            connection.abort()
            raise

    async def _leads(self, connection: KafkaConnection) -> bool:
        """Return whether the controller on the other side leads.

        Sends a heartbeat without a registration. A standby answers NOT_CONTROLLER. Any other answer
        is that of a leader.
        """
        # Without a registration the epoch is -1, and a leader answers STALE_BROKER_EPOCH.
        answer = await connection.request(
            control.BrokerHeartbeatRequest(
                broker_id=self._broker_id,
                broker_epoch=_NO_EPOCH,
                session_token=b"",
                snapshot_controller_epoch=_NO_EPOCH,
                loop_age_ms=0,
                want_shut_down=False,
            ),
            control.BrokerHeartbeatResponse,
            ANSWER_S,
        )
        return answer.error_code != int(ErrorCode.not_controller.value)

    def _note_problem(self, address: Address, error: Exception) -> None:
        problem = str(error) or type(error).__name__
        if self._problems.get(address) != problem:
            logger.warning("controller at %s:%d: %s", *address, problem)
        self._problems[address] = problem
