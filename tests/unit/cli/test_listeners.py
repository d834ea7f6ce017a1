"""Output of `tidemark up` about the listeners of clients."""

from tidemark_broker.listeners import addresses_of, client_listeners
from tidemark_devcluster.cluster import described, listeners_of
from tidemark_devcluster.processes import ProcessRecord


def listener(name: str, port: int, protocol: str, proof: str, bound: str) -> dict[str, str]:
    return {
        "name": name,
        "address": f"127.0.0.1:{port}",
        "protocol": protocol,
        "proof": proof,
        "bound": bound,
    }


def open_to(port: int, bound: str = "127.0.0.1") -> dict[str, str]:
    return listener("PLAINTEXT", port, "PLAINTEXT", "", bound)


def broker(*clients: dict[str, str]) -> ProcessRecord:
    return ProcessRecord("broker-1", 1, 1, {"clients": list(clients)})


def test_each_listener_states_authentication_and_authorization() -> None:
    secured = (
        listener("IN", 2, "SASL_SSL", "SCRAM-SHA-512", "127.0.0.1"),
        listener("CERT", 3, "SSL", "a certificate", "0.0.0.0"),
    )
    records = [broker(open_to(1), *secured), broker(open_to(4)), ProcessRecord("operator", 2, 1)]
    found = listeners_of(records)
    unauthenticated = "no authentication: every client from this machine may"
    assert described(found, authorize=False) == [
        f"PLAINTEXT 127.0.0.1:1,127.0.0.1:4 (PLAINTEXT): {unauthenticated} do everything",
        "IN 127.0.0.1:2 (SASL_SSL): authenticated clients (SCRAM-SHA-512) may do everything",
        "CERT 127.0.0.1:3 (SSL): authenticated clients (a certificate) may do everything",
    ]
    lines = described(found, authorize=True)
    assert all(line.endswith("may do what ACLs allow") for line in lines)


def test_listeners_are_described_for_each_broker() -> None:
    """Each broker reports the listeners that it started with. Files may have changed since."""
    scram = listener("PLAINTEXT", 1, "SASL_PLAINTEXT", "SCRAM-SHA-512", "127.0.0.1")
    lines = described(
        listeners_of([broker(scram), broker(open_to(2)), broker(open_to(3, "0.0.0.0"))]),
        authorize=None,
    )
    assert [line.split(": ")[1].split(" may ")[0] for line in lines] == [
        "authenticated clients (SCRAM-SHA-512)",
        "no authentication",
        "no authentication",
    ]
    assert "from this machine" in lines[1]
    assert "from any machine" in lines[2]
    assert all(line.endswith("unless the Cluster has an authorization") for line in lines)


def test_a_broker_lists_its_authentication_mechanisms() -> None:
    entries = {
        "listener.security.protocol.map": "A:PLAINTEXT,B:SASL_SSL,C:SSL,D:SSL",
        **{f"listener.name.{name}.tidemark.tls.directory": "/tls" for name in "bcd"},
        "listener.name.b.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.c.ssl.client.auth": "required",
        "listener.name.d.ssl.client.auth": "requested",
    }
    at = addresses_of("listeners", ",".join(f"{name}://127.0.0.1:1" for name in "ABCD"))
    proofs = [client_listener.proof for client_listener in client_listeners(entries, at)]
    assert proofs == ["", "PLAIN, SCRAM-SHA-512", "a certificate", ""]
