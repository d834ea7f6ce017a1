"""The network between processes: messages may be lost, duplicated, delayed or reordered.

A :class:`Connection` replaces ``KafkaConnection`` (entities are passed, not encoded). The frames of
a command connection are real frames and keep their order, as TCP guarantees. A process that is
killed resets its connections; one that loses its power, or stalls, sends nothing.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from tests.simulation.clockwork import Clockwork, ProcessLoop
from tidemark.wire import control

_LENGTH = struct.Struct(">i")


class Network:
    """Chances are set by the faults of a run; all are 0 while it is to settle."""

    def __init__(self, world: Clockwork) -> None:
        self.world = world
        self.at: dict[tuple[str, int], Any] = {}
        self.lost = 0.0
        self.doubled = 0.0
        self.slow = 0.0
        self.slowest_s = 0.5
        #: Answers of operators to AlterPartition that are overtaken by what they push meanwhile,
        #: and that reach the partition a second time, later still.
        self.overtaken = 0.0
        #: Pairs of process names that do not hear each other.
        self.cut: set[tuple[str, str]] = set()
        self.connections: dict[ProcessLoop, list[Connection]] = {}

    def quiet(self) -> None:
        """From now on it works."""
        self.lost = self.doubled = self.slow = self.overtaken = 0.0
        self.cut.clear()

    def delay_s(self) -> float:
        chance = self.world.chance
        if self.slow and chance.random() < self.slow:
            return self.slowest_s * chance.random()
        return 0.0003 + 0.0015 * chance.random()

    def loses(self, one: str, other: str) -> bool:
        if self.cut and ((one, other) in self.cut or (other, one) in self.cut):
            return True
        return bool(self.lost) and self.world.chance.random() < self.lost

    def overtakes(self) -> bool:
        return bool(self.overtaken) and self.world.chance.random() < self.overtaken

    def send(
        self, sender: ProcessLoop, to: ProcessLoop, callback: Callable[..., object], *args: Any
    ) -> None:
        """One message; ``callback`` runs in the receiver."""
        if self.loses(sender.name, to.name):
            return
        world = self.world
        world.at(world.now_s + self.delay_s(), to, callback, *args)

    def reset(self, loop: ProcessLoop) -> None:
        """Reset the connections of a process that ended on a running machine: peers see their
        connections end.
        """
        for connection in self.connections.pop(loop, []):
            for end in (connection.mine, connection.theirs):
                if not end.dead:
                    self.world.at(self.world.now_s + self.delay_s(), end, connection.drop)


class Connection:
    """One end dialled, the other serves. ``mine`` is the loop of who dialled."""

    network: Network

    def __init__(self, mine: ProcessLoop, process: Any, peer: str) -> None:
        self.mine = mine
        self.process = process
        self.theirs: ProcessLoop = process.loop
        self.peer = peer
        self.closed = False
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._frames: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._written = bytearray()
        self._last_s = [0.0, 0.0]
        self.channel: Any = None
        #: What the serving process does when the connection has ended.
        self.on_drop: Callable[[], None] | None = None
        for loop in (self.mine, self.theirs):
            self.network.connections.setdefault(loop, []).append(self)

    @classmethod
    async def connect(
        cls, host: str, port: int, *, client_id: str = "", timeout_s: float = 10.0, **_: Any
    ) -> "Connection":
        loop: Any = asyncio.get_running_loop()
        network = loop.world.network
        process = network.at.get((host, port))
        if process is None or network.loses(loop.name, process.loop.name):
            await asyncio.sleep(timeout_s)
            raise TimeoutError
        await asyncio.sleep(network.delay_s() * 2)
        process = network.at.get((host, port))
        if process is None or process.loop.dead:
            raise ConnectionRefusedError(f"no process listens at {host}:{port}")
        return cls(loop, process, f"{host}:{port}")

    # ------------------------------------------------------------ requests

    async def request(self, entity: Any, response_type: Any, timeout_s: float) -> Any:
        if self.closed:
            raise ConnectionResetError("the connection is closed")
        world, network = self.mine.world, self.network
        answer = self.mine.create_future()
        self._number += 1
        number = self._number
        self._open[number] = answer
        network.send(self.mine, self.theirs, self._serve, entity, number)
        if network.doubled and world.chance.random() < network.doubled:
            network.send(self.mine, self.theirs, self._serve, entity, 0)
        timer = self.mine.call_later(timeout_s, _time_out, answer)
        try:
            return await answer
        finally:
            timer.cancel()
            self._open.pop(number, None)

    def _serve(self, entity: Any, number: int) -> None:
        """In the process that was dialled."""
        try:
            given = self.process.answer(entity, self)
        except ConnectionError:  # it hears nothing more over this one
            self.end_from(self.theirs)
            return
        if isinstance(given, Awaitable):
            task = asyncio.ensure_future(given)
            task.add_done_callback(lambda done: self._answered(done, number, entity))
            return
        self._reply(number, given, entity)
        if number and isinstance(given, control.AttachResponse) and not given.error_code:
            self.process.attach(entity, given, self)

    def _answered(self, done: "asyncio.Task[Any]", number: int, entity: Any) -> None:
        if not done.cancelled() and done.exception() is None:
            self._reply(number, done.result(), entity)

    def _reply(self, number: int, answer: Any, entity: Any) -> None:
        network, world = self.network, self.network.world
        if not number or self.closed:
            return
        if isinstance(answer, control.AlterPartitionResponse) and network.overtakes():
            late_s = network.slowest_s * world.chance.random()
            world.at(world.now_s + late_s, self.mine, self._settle, number, answer)
            again_s = late_s + network.slowest_s * world.chance.random()
            again = self.mine.process.answered_again
            world.at(world.now_s + again_s, self.mine, again, entity, answer)
            return
        network.send(self.theirs, self.mine, self._settle, number, answer)

    def _settle(self, number: int, answer: Any) -> None:
        waiting = self._open.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    # ------------------------------------------------------------ roles reversed

    def push(self, frame: bytes) -> None:
        """A frame of the other side, in order."""
        if not self.closed:
            self._in_order(0, self.mine, self._push, frame[4:])

    def _in_order(self, way: int, to: ProcessLoop, call: Any, frame: bytes) -> None:
        """A stream loses nothing silently: a lost packet is sent again, or the connection ends."""
        world, network = self.mine.world, self.network
        delay_s = network.delay_s()
        if network.loses(self.theirs.name, self.mine.name):
            delay_s += 3.0 * world.chance.random()
            if world.chance.random() < 0.5:
                for end in (self.mine, self.theirs):
                    world.at(world.now_s + delay_s, end, self.drop)
                return
        when_s = max(world.now_s + delay_s, self._last_s[way])
        self._last_s[way] = when_s
        world.at(when_s, to, call, frame)

    def _push(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._arrived.set()

    async def read_frame(self) -> bytes:
        while not self._frames:
            if self.closed:
                raise ConnectionResetError("the connection is closed")
            self._arrived.clear()
            await self._arrived.wait()
        return self._frames.popleft()

    def write(self, piece: bytes) -> None:
        if self.closed:
            raise ConnectionResetError("the connection is closed")
        held = self._written
        held += piece
        while len(held) >= 4 and len(held) >= 4 + (size := _LENGTH.unpack_from(held)[0]):
            frame = bytes(held[4 : 4 + size])
            del held[: 4 + size]
            if self.channel is not None:
                self._in_order(1, self.theirs, self.channel.arrived, frame)

    async def drain(self) -> None:
        if self.closed:
            raise ConnectionResetError("the connection is closed")

    # ------------------------------------------------------------ the end

    def drop(self) -> None:
        """End the connection with an error for waiting requests."""
        if self.closed:
            return
        self.closed = True
        for waiting in self._open.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the other side has disconnected"))
        self._arrived.set()
        if self.channel is not None:
            self.channel.close()
        if self.on_drop is not None:
            self.on_drop()

    def end_from(self, loop: ProcessLoop) -> None:
        """Close one side; the other side receives that a little later."""
        if self.closed:
            return
        other = self.theirs if loop is self.mine else self.mine
        if not other.dead:
            self.network.world.at(
                self.network.world.now_s + self.network.delay_s(), other, self._other_closed
            )
        self.drop()

    def _other_closed(self) -> None:
        self.drop()

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self.end_from(self.mine)
        for loop in (self.mine, self.theirs):
            held = self.network.connections.get(loop)
            if held is not None and self in held:
                held.remove(self)


def _time_out(answer: "asyncio.Future[Any]") -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())
