"""Every request for a broker shows its session's secret, because an epoch is a guessable number."""

import pytest
from kio.schema.errors import ErrorCode

from tidemark.tls.identity import TlsIdentity
from tidemark.wire import control
from tidemark_operator.listener.server import ControlServer, _Peer, _Term
from tidemark_operator.listener.sessions import BrokerSessions

SECRET = b"0123456789abcdef"
STALE = int(ErrorCode.stale_broker_epoch)


@pytest.fixture
def server() -> ControlServer:
    """The answers of a listener in a term, with broker 1 registered in epoch 7."""
    # Without a socket: only the answers are tested.
    made = ControlServer.__new__(ControlServer)
    sessions = BrokerSessions(9.0, 0.25)
    sessions.open(1, 7, 0.0)
    assert sessions.give_token(1, 7, SECRET)
    made._term = _Term(3, sessions)
    return made


def attach(server: ControlServer, token: bytes, *, epoch: int = 7, node_id: int = 1) -> int:
    request = control.AttachRequest(broker_id=1, broker_epoch=epoch, session_token=token)
    answer = server._answer(request, _Peer(TlsIdentity("c", node_id)))
    assert isinstance(answer, control.AttachResponse)
    return answer.error_code


def test_session_token_is_accepted(server: ControlServer) -> None:
    assert attach(server, SECRET) == 0


@pytest.mark.parametrize("token", [b"", b"0123456789abcdeg", SECRET + b"0", SECRET[:-1]])
def test_wrong_session_token_is_rejected(server: ControlServer, token: bytes) -> None:
    assert attach(server, token) == STALE


@pytest.mark.parametrize("epoch", [6, 8, 2**62])
def test_other_epoch_is_rejected(server: ControlServer, epoch: int) -> None:
    assert attach(server, SECRET, epoch=epoch) == STALE


def test_session_without_token_after_takeover_is_rejected(server: ControlServer) -> None:
    assert server._term is not None
    # After a takeover the new controller knows the epoch but has no secret for it.
    server._term.sessions.open(1, 7, 0.0)
    assert attach(server, b"") == STALE


def test_broker_cannot_attach_as_another(server: ControlServer) -> None:
    with pytest.raises(ConnectionAbortedError, match="broker 2 of cluster c is not broker 1"):
        attach(server, SECRET, node_id=2)


def test_rejected_heartbeat_leaves_session_unchanged(server: ControlServer) -> None:
    """Neither a sign of life nor a change of its state."""
    beat = control.BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=7,
        snapshot_controller_epoch=3,
        loop_age_ms=0,
        want_shut_down=True,
    )
    assert server._term is not None
    # A refused heartbeat must not count as a sign of life, or an impostor could keep a dead broker
    # registered.
    before = server._term.sessions.get(1, 7)
    assert before is not None
    seen_s, known = before.last_seen_s, before.beat
    answer = server._answer(beat, _Peer(TlsIdentity("c", 1)))
    assert isinstance(answer, control.BrokerHeartbeatResponse)
    assert answer.error_code == STALE
    assert answer.is_fenced
    assert (before.last_seen_s, before.beat, before.connections) == (seen_s, known, 0)
