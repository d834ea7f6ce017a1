"""An Apache Kafka that requires TLS, a certificate and a user: every mechanism of the client,
and the conditions of a Cluster whose Secrets are wrong until they are fixed.
"""

import asyncio
import base64
import datetime as dt
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.kafka_engine.secured_kafka import SecuredKafka, put_secret, secured_kafka
from tests.integration.operator.cluster_world import condition_of
from tests.security.client_certificates import ClientAuthority, Leaf
from tidemark.kafka_client.access import KafkaAccess, Login, Tls
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.errors import ClusterRefused
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json, Kind

pytestmark = pytest.mark.full


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredKafka]:
    """SecuredKafka Kafka for one test."""
    with secured_kafka(tmp_path) as started:
        yield started


def token(name: str) -> str:
    """Return an unsigned token, which Kafka's validator for trials accepts."""
    now_s = int(time.time())
    parts = {"alg": "none"}, {"sub": name, "iat": now_s, "exp": now_s + 600}
    texts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return b".".join(texts).decode() + "."


@pytest.mark.slow
async def test_every_mechanism_and_wrong_secrets(
    kubeconfig: Path, tmp_path: Path, secured: SecuredKafka
) -> None:
    bootstrap, server = secured.bootstrap, secured.server
    client = secured.authority.leaf(tmp_path / "us", "CN=us")
    # SCRAM credentials need a broker that runs.
    _make_scram_user(bootstrap, client)
    trusted = Path(server.trusted).read_text()
    shown = Path(client.certificate).read_text(), Path(client.key).read_text()
    await _logs_in(bootstrap, Tls(trusted, *shown))
    other = ClientAuthority("others").leaf(tmp_path / "other", "CN=other")
    world = await KafkaWorld.open(kubeconfig, tmp_path)
    try:
        # A wrong authority, then a wrong password; each is fixed in turn.
        await put_secret(world, "ca", {"ca.crt": Path(other.trusted).read_text()})
        await put_secret(world, "us", {"tls.crt": shown[0], "tls.key": shown[1]})
        await put_secret(world, "user", {"username": "ann", "password": "wrong"})
        await world.create_kafka_cluster(
            bootstrap,
            tls={"caSecretRef": {"name": "ca"}, "certificateSecretRef": {"name": "us"}},
            sasl={"mechanism": "PLAIN", "credentialsSecretRef": {"name": "user"}},
        )
        await world.start_operator()
        condition = await world.condition(CLUSTER, "demo", "Stalled", "True", "EngineRejected")
        assert "is not trusted" in condition["message"]
        # The right authority leads to the next error.
        await put_secret(world, "ca", {"ca.crt": trusted})

        async def status_has(text: str) -> bool:
            body = await world.get(CLUSTER, "demo")
            return text in json.dumps(body["status"]["conditions"])

        await world.until(lambda: status_has("refuses user 'ann'"), "the password is refused", 60)
        # The wrong password itself is not in the status.
        assert not await status_has("wrong")
        await put_secret(world, "user", {"username": "ann", "password": "secret"})
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
    # Every mechanism with the right secret.
    for login in logins:
        async with KafkaClient(KafkaAccess((bootstrap,), tls, login)) as client:
            assert len((await Admin(client).describe_cluster()).nodes) == 1
    # And each with a wrong one.
    wrong = [*(Login(item.mechanism, item.name, "wrong") for item in logins)]
    for login in wrong:
        async with KafkaClient(KafkaAccess((bootstrap,), tls, login)) as client:
            with pytest.raises(ClusterRefused, match="refuses"):
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


@pytest.mark.slow
@pytest.mark.long
async def test_expired_certificate_and_changed_password_are_reported(
    kubeconfig: Path, tmp_path: Path, secured: SecuredKafka
) -> None:
    """The condition status_has what to do, and afterwards the same process continues."""
    authority, trusted = secured.authority, Path(secured.server.trusted).read_text()
    good = _shown(authority.leaf(tmp_path / "good", "CN=us"))
    expired = _shown(authority.leaf(tmp_path / "old", "CN=us", ends=dt.timedelta(hours=-1)))
    strange = _shown(ClientAuthority("others").leaf(tmp_path / "strange", "CN=us"))
    world = await KafkaWorld.open(kubeconfig, tmp_path)
    try:
        await put_secret(world, "ca", {"ca.crt": trusted})
        await put_secret(world, "us", expired)
        await put_secret(world, "user", {"username": "ann", "password": "secret"})
        await world.create_kafka_cluster(
            secured.bootstrap,
            tls={"caSecretRef": {"name": "ca"}, "certificateSecretRef": {"name": "us"}},
            sasl={"mechanism": "PLAIN", "credentialsSecretRef": {"name": "user"}},
        )
        # The expired certificate is noticed before Kafka is contacted.
        operator = await world.start_operator()
        await world.create_topic("fixed", 1, 1)
        condition = await world.condition(CLUSTER, "demo", "Stalled", "True", "EngineRejected")
        epoch = (await world.get(CLUSTER, "demo"))["status"]["controller"]["epoch"]
        assert "refuses the client certificate, which expired at 20" in condition["message"]
        assert "its key, into Secret us (tls.crt, tls.key)" in condition["message"]
        await _ready_message_has(world, "which expired", of=(TOPIC, "fixed"))
        # A certificate of an unknown authority.
        await put_secret(world, "us", strange)
        await _ready_message_has(
            world, "refuses the client certificate (", "its authorities have issued"
        )
        await put_secret(world, "us", good)
        await world.condition(CLUSTER, "demo", "Ready", "True")
        await world.ready("fixed")
        # Of what serves already, too: it is read again within half a minute.
        # The password changes while the operator is connected.
        await put_secret(world, "user", {"username": "ann", "password": "former"})
        await _ready_message_has(
            world, "refuses user 'ann'", "credentials are read from Secret user: fix them"
        )
        await world.condition(CLUSTER, "demo", "Stalled", "True", "EngineRejected")
        # Retries have a pause: a locked-out user would otherwise cause many failures.
        await asyncio.sleep(10)
        dialed = operator.log.count("dialing ")
        await asyncio.sleep(10)
        assert operator.log.count("dialing ") - dialed <= 4, "it knocks too often"
        await put_secret(world, "user", {"username": "ann", "password": "secret"})
        await world.condition(CLUSTER, "demo", "Ready", "True")
        status = (await world.get(CLUSTER, "demo"))["status"]
        # The same process and the same term.
        assert status["controller"]["epoch"] == epoch, "it was not restarted"
        assert "secret" not in json.dumps(status)
    finally:
        await world.close()


def _shown(leaf: Leaf) -> dict[str, str]:
    return {
        "tls.crt": Path(leaf.certificate).read_text(),
        "tls.key": Path(leaf.key).read_text(),
    }


async def _ready_message_has(
    world: KafkaWorld, *texts: str, of: tuple[Kind, str] = (CLUSTER, "demo")
) -> None:
    def message_has_texts(status: Json) -> bool:
        message = str(condition_of(status, "Ready").get("message"))
        return all(text in message for text in texts)

    await world.status_where(*of, message_has_texts, 60)
