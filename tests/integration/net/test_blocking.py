"""The blocking connection: complete responses, in time, and only to its own requests."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from tidemark.wire import control
from tidemark.wire.blocking import BlockingConnection
from tidemark.wire.framing import FrameError, encode_response

LIMIT = 10_000


@contextmanager
def _peer(serve: Callable[[socket.socket], None]) -> Iterator[BlockingConnection]:
    """A connection to a thread that has read one request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(1000)
                serve(accepted)
                # Keep the connection open until the client has closed it.
                accepted.recv(1)  # until the other side has closed

        thread = threading.Thread(target=run)
        thread.start()
        host, port = listening.getsockname()
        connection = BlockingConnection(
            host, port, client_id="test", timeout_s=5, frame_bytes_max=LIMIT
        )
        with closing(connection):
            yield connection
        thread.join(5)


def _ask(connection: BlockingConnection, timeout_s: float = 5) -> control.AttachResponse:
    request = control.AttachRequest(broker_id=1, broker_epoch=7)
    return connection.request(request, control.AttachResponse, timeout_s)


def _answer(correlation_id: int) -> bytes:
    return encode_response(control.AttachResponse(error_code=0, controller_epoch=3), correlation_id)


def test_response_in_pieces_is_assembled() -> None:
    def serve(peer: socket.socket) -> None:
        for byte in _answer(1):
            # One byte per packet.
            peer.sendall(bytes((byte,)))

    with _peer(serve) as connection:
        assert _ask(connection).controller_epoch == 3


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (_answer(2), "an answer to request 2, not 1"),
        # A second response without a request is as wrong as another correlation id.
        (_answer(1) + _answer(2), "an answer to no request"),
        ((LIMIT + 1).to_bytes(4, "big"), f"at most {LIMIT} are allowed"),
        (b"HTTP/1.1 400 Bad Request\r\n", "at most"),
    ],
)
def test_unsolicited_answer_is_refused(sent: bytes, says: str) -> None:
    with (
        _peer(lambda peer: peer.sendall(sent)) as connection,
        pytest.raises(FrameError, match=says),
    ):
        _ask(connection)


def test_incomplete_response_times_out() -> None:
    with (
        _peer(lambda peer: peer.sendall(_answer(1)[:-1])) as connection,
        pytest.raises(TimeoutError),
    ):
        _ask(connection, timeout_s=0.1)
