"""Identity in a certificate's subject alternative names."""

import pytest

from tidemark.tls.identity import TlsIdentity, WrongPeer, check, of_certificate, parse

BROKER, CONTROLLER = TlsIdentity("c1", 7), TlsIdentity("c1")


def certificate(*names: tuple[str, str]) -> dict[str, object]:
    return {"subjectAltName": names}


@pytest.mark.parametrize(
    "who", [BROKER, CONTROLLER, TlsIdentity("c1", 0), TlsIdentity("c1", 2**31 - 1)]
)
def test_name_in_a_certificate_is_read_back(who: TlsIdentity) -> None:
    assert parse(who.uri) == who
    assert of_certificate(certificate(("URI", who.uri))) == who


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "tidemark:cluster/c1/broker/",
        "tidemark:cluster/c1/broker/-1",
        "tidemark:cluster/c1/broker/2147483648",
        "tidemark:cluster/c1/broker/1/2",
        "tidemark:cluster//broker/1",
        "tidemark:cluster/c1/controller/1",
        "https://tidemark:cluster/c1/controller",
        "tidemark:cluster/c1/controller\n",
    ],
)
def test_nothing_else_is_a_name(uri: str) -> None:
    assert parse(uri) is None
    with pytest.raises(WrongPeer, match="names no broker and no controller"):
        of_certificate(certificate(("URI", uri)))


@pytest.mark.parametrize(
    "names",
    [
        (),
        (("DNS", "tidemark:cluster/c1/controller"),),
        (("URI", BROKER.uri), ("URI", CONTROLLER.uri)),
        (("URI", BROKER.uri), ("DNS", "localhost")),
    ],
)
def test_a_certificate_has_one_name(names: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(WrongPeer):
        of_certificate(certificate(*names))


def test_a_client_without_a_certificate_is_anonymous() -> None:
    with pytest.raises(WrongPeer, match="no name"):
        of_certificate(None)


def test_wrong_peer_is_named() -> None:
    check(certificate(("URI", BROKER.uri)), BROKER)
    with pytest.raises(WrongPeer, match="it is broker 7 of cluster c1, not a controller of"):
        check(certificate(("URI", BROKER.uri)), CONTROLLER)
