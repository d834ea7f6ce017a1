"""An Apache Kafka that asks for TLS, a certificate and a user: every mechanism that the client has,
and what a Cluster says of Secrets that do not fit until they are mended."""

import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.apache_kafka import Wanted, running
from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.kafka_programs import kafka_jars
from tests.security.client_certificates import ClientAuthority, Leaf
from tidemark.kafka_client.access import Access, Login, Tls
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient, Refused
from tidemark_cli.local.kafka_properties import protocol_map
from tidemark_operator.kube.kinds import CLUSTER, SECRET

PREFIX = "listener.name.clients."
MODULES = "org.apache.kafka.common.security"


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[str, Leaf, Leaf]]:
    """Where it listens; what it shows, and what a client of it shows."""
    kafka_jars()
    authority = ClientAuthority()
    server, client = (authority.leaf(tmp_path / name, f"CN={name}") for name in ("broker", "us"))
    store = tmp_path / "broker.pem"
    store.write_text(Path(server.key).read_text() + Path(server.certificate).read_text())
    oauth = (
        f"{MODULES}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    )
    entries = {
        "listener.security.protocol.map": protocol_map(clients="SASL_SSL"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{PREFIX}plain.sasl.jaas.config": (
            f'{MODULES}.plain.PlainLoginModule required user_ann="secret";'
        ),
        f"{PREFIX}scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        f"{PREFIX}scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        f"{PREFIX}oauthbearer.sasl.jaas.config": oauth,
        f"{PREFIX}ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": server.trusted,
    }
    with running(tmp_path / "kafka", Wanted(entries=entries)) as nodes:
        yield nodes.bootstrap, server, client


def token(name: str) -> str:
    """As Kafka's validator for trials takes it: a claim that nobody has signed."""
    now_s = int(time.time())
    parts = {"alg": "none"}, {"sub": name, "iat": now_s, "exp": now_s + 600}
    texts = (base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in parts)
    return b".".join(texts).decode() + "."


@pytest.mark.slow
async def test_every_mechanism_and_secrets_that_do_not_fit(
    kubeconfig: Path, tmp_path: Path, secured: tuple[str, Leaf, Leaf]
) -> None:
    bootstrap, server, client = secured
    _make_scram_user(bootstrap, client)
    trusted = Path(server.trusted).read_text()
    shown = Path(client.certificate).read_text(), Path(client.key).read_text()
    await _logs_in(bootstrap, Tls(trusted, *shown))
    other = ClientAuthority("others").leaf(tmp_path / "other", "CN=other")
    world = await KafkaWorld.open(kubeconfig, tmp_path)
    try:
        await _secret(world, "ca", {"ca.crt": Path(other.trusted).read_text()})
        await _secret(world, "us", {"tls.crt": shown[0], "tls.key": shown[1]})
        await _secret(world, "user", {"username": "ann", "password": "wrong"})
        await world.create_kafka_cluster(
            bootstrap,
            tls={"caSecretRef": {"name": "ca"}, "certificateSecretRef": {"name": "us"}},
            sasl={"mechanism": "PLAIN", "credentialsSecretRef": {"name": "user"}},
        )
        await world.start_operator()
        told = await world.condition(CLUSTER, "demo", "Stalled", "True", "EngineRefuses")
        assert "is not trusted" in told["message"]
        await _secret(world, "ca", {"ca.crt": trusted})

        async def says(text: str) -> bool:
            body = await world.get(CLUSTER, "demo")
            return text in json.dumps(body["status"]["conditions"])

        await world.until(lambda: says("refuses user 'ann'"), "the password is refused", 60)
        assert not await says("wrong")
        await _secret(world, "user", {"username": "ann", "password": "secret"})
        await world.condition(CLUSTER, "demo", "Ready", "True")
        await world.create_topic("secured", 1, 1)
        await world.ready("secured")
    finally:
        await world.close()


async def _logs_in(bootstrap: str, tls: Tls) -> None:
    logins = [
        Login("PLAIN", "ann", "secret"),
        Login("SCRAM-SHA-256", "bob", "hidden"),
        Login("SCRAM-SHA-512", "bob", "hidden"),
        Login("OAUTHBEARER", "", token("cleo")),
    ]
    for login in logins:
        async with KafkaClient(Access((bootstrap,), tls, login)) as client:
            assert len((await Admin(client).describe_cluster()).nodes) == 1
    wrong = [*(Login(each.mechanism, each.name, "wrong") for each in logins)]
    for login in wrong:
        async with KafkaClient(Access((bootstrap,), tls, login)) as client:
            with pytest.raises(Refused, match="refuses"):
                await Admin(client).describe_cluster()


def _make_scram_user(bootstrap: str, client: Leaf) -> None:
    admin = AdminClient(
        {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": client.trusted,
            "ssl.certificate.location": client.certificate,
            "ssl.key.location": client.key,
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": "secret",
        }
    )
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 4096)
        made = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("bob", info, b"hidden")]
        )
        made["bob"].result(60)


async def _secret(world: KafkaWorld, name: str, data: dict[str, str]) -> None:
    """Made, or given another content."""
    texts = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    if await world.gone(SECRET, name):
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": texts}
        await world.api.create(SECRET, world.namespace, body)
    else:
        await world.api.merge_patch(SECRET, world.namespace, name, {"data": texts})
