"""An Apache Kafka whose listener requires TLS, a certificate and a user; and Secrets for it."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.apache_kafka import KafkaOptions, running
from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.kafka_programs import kafka_jars
from tests.security.client_certificates import ClientAuthority, Leaf
from tidemark_devcluster.kafka_properties import protocol_map
from tidemark_operator.kube.kinds import SECRET
from tidemark_operator.resources.names import OFFERED_ANNOTATION

PREFIX = "listener.name.clients."
MODULES = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class SecuredKafka:
    """Address and certificate of the Kafka, and the authority of its clients' certificates."""

    bootstrap: str
    server: Leaf
    authority: ClientAuthority


@contextmanager
def secured_kafka(folder: Path) -> Iterator[SecuredKafka]:
    """One broker; user ``ann`` has the password ``secret``."""
    kafka_jars()
    authority = ClientAuthority()
    server = authority.leaf(folder / "broker", "CN=broker")
    store = folder / "broker.pem"
    # One PEM file with key and certificate, as Kafka's PEM keystore wants it.
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
        # SCRAM users are created by the test; PLAIN has a fixed one.
        f"{PREFIX}scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        f"{PREFIX}oauthbearer.sasl.jaas.config": oauth,
        # Clients need a certificate and a user.
        f"{PREFIX}ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": server.trusted,
    }
    with running(folder / "kafka", KafkaOptions(entries=entries)) as nodes:
        yield SecuredKafka(nodes.bootstrap, server, authority)


async def put_secret(world: KafkaWorld, name: str, data: dict[str, str]) -> None:
    """Create a Secret, or replace its data."""
    texts = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    if await world.is_deleted(SECRET, name):
        meta = {"name": name, "annotations": {OFFERED_ANNOTATION: "Cluster"}}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": texts}
        await world.api.create(SECRET, world.namespace, body)
    else:
        await world.api.merge_patch(SECRET, world.namespace, name, {"data": texts})
