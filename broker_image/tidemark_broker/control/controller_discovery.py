"""Finding out who leads: every address is asked at once, and again until one of them does.

An operator that was stopped, or whose machine is gone, answers nothing. Asked one after the other,
each such address would keep the broker for seconds from the one that leads; and whoever stands by
would hear late that the broker lives, and lead over a cluster that it does not know yet. So each
address is asked by itself, over a connection that stays, and the first that does not say
NOT_CONTROLLER is where the broker registers. Nothing is registered by asking.
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

#: An address at which nobody is any more is dialled anew after this long.
DIAL_S = 3.0
#: How long an answer may take: the other side decides nothing for it.
ANSWER_S = 3.0
#: One that stands by may lead in the next moment.
ASK_AGAIN_S = 0.5
LATER_S = 1.0
LONGEST_PAUSE_S = 1.0
_PAUSES = Backoff(first_s=0.1, most_s=LONGEST_PAUSE_S)
_NO_EPOCH = -1


class Found(NamedTuple):
    """Who leads, and the connection over which it said so: whoever gets it closes it."""

    address: Address
    connection: KafkaConnection


class Finder:
    """Belongs to the loop. ``connect`` dials an address; it raises ``OSError``, ``TimeoutError`` or
    ``FrameError``."""

    def __init__(
        self,
        broker_id: int,
        addresses: tuple[Address, ...],
        connect: Callable[[Address], Awaitable[KafkaConnection]],
    ) -> None:
        self._broker_id = broker_id
        self._addresses = addresses
        self._connect = connect
        #: The last one of each address: one line for each new problem, not one for each try.
        self._problems: dict[Address, str] = {}

    async def find(self, *, last: Address | None = None) -> Found:
        """The first address that leads, until cancelled. ``last``: one that said so and came to
        nothing, as one does that hangs or was superseded: it is asked a little after the others."""
        looking = [
            asyncio.ensure_future(self._look(address, LATER_S if address == last else 0.0))
            for address in self._addresses
        ]
        first: Found | None = None
        try:
            try:
                await asyncio.wait(looking, return_when=asyncio.FIRST_COMPLETED)
                first = next(task for task in looking if task.done()).result()
            finally:
                for task in looking:
                    task.cancel()
                for other in await asyncio.gather(*looking, return_exceptions=True):
                    if isinstance(other, Found) and other is not first:
                        other.connection.abort()
        except BaseException:
            if first is not None:
                first.connection.abort()
            raise
        return first

    async def _look(self, address: Address, after_s: float) -> Found:
        failures = 0
        await asyncio.sleep(after_s)
        while True:
            try:
                connection = await self._connect(address)
                await self._until_it_leads(connection)
            except (OSError, TimeoutError, FrameError) as error:
                self._note_problem(address, error)
            except Exception:
                logger.exception("the controller at %s:%d cannot be asked", *address)
            else:
                self._problems.pop(address, None)
                return Found(address, connection)
            failures += 1
            await asyncio.sleep(_PAUSES.pause_s(failures))

    async def _until_it_leads(self, connection: KafkaConnection) -> None:
        """Whatever goes wrong, the connection is ended."""
        try:
            while not await self._leads(connection):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(ASK_AGAIN_S)
        except BaseException:
            connection.abort()
            raise

    async def _leads(self, connection: KafkaConnection) -> bool:
        """A heartbeat of no registration is a question: who leads answers that it knows of none."""
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
