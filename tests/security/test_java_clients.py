"""Apache Kafka's Java clients and tools at a secured broker, by each kind of proof."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kafka_programs import ProgramFailed, java, kafka_jars
from tests.security.secured_broker import PASSWORD, READER, WRITER, Secured, secured
from tests.user_states import quota, user

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.full]

BOTH = user("both", "ALLOW ALL TOPIC orders", password=PASSWORD)
ROBOT = user("robot", "ALLOW ALL TOPIC orders")
LOADER = user("CN=loader,O=Acme", "ALLOW ALL TOPIC orders")
ADMIN = user("admin", password=PASSWORD)
#: Other tests get in by SCRAM-SHA-512; librdkafka's clients by all of them
#: (test_client_authentication.py).
MECHANISMS = [
    "OAUTHBEARER",
    *(
        pytest.param(item, marks=pytest.mark.long)
        for item in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "certificate")
    ),
]
_MODULES = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def jars() -> Path:
    return kafka_jars()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured(tmp_path, WRITER, READER, BOTH, ROBOT, LOADER, ADMIN) as made:
        yield made


class JavaClient:
    """One way to get in, as a user of Kafka's scripts writes it down."""

    def __init__(self, cluster: Secured, jars: Path, listener: str, **settings: str) -> None:
        self._jars = jars
        self._file = cluster.folder / "client.properties"
        self._server = ("--bootstrap-server", cluster.address(listener))
        self._flags: tuple[str, ...] = ()
        # Java retries for two minutes by default, so the timeouts are short.
        common = {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": cluster.server.trusted,
            "enable.idempotence": "false",
            "delivery.timeout.ms": "10000",
            "request.timeout.ms": "5000",
        }
        lines = (f"{key}={value}" for key, value in (common | settings).items())
        self._file.write_text("\n".join(lines))

    @classmethod
    def by_sasl(
        cls,
        cluster: Secured,
        jars: Path,
        mechanism: str,
        name: str = "both",
        password: str = PASSWORD,
    ) -> "JavaClient":
        # Java selects the mechanism by the class of its login module.
        kind = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}
        module = f"{_MODULES}.{kind.get(mechanism, 'scram.Scram')}LoginModule required"
        settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}
        if mechanism != "OAUTHBEARER":
            jaas = f'{module} username="{name}" password="{password}";'
            return cls(cluster, jars, "SECURE", **settings, **{"sasl.jaas.config": jaas})
        # Kafka 4 reads a token from a file URL, if a system property allows that URL and file.
        token = cluster.folder / "token.jwt"
        token.write_text(cluster.issuer.token("robot"))
        settings |= {
            "sasl.jaas.config": f"{module};",
            "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
            "sasl.login.callback.handler.class": f"{_MODULES}.oauthbearer."
            "OAuthBearerLoginCallbackHandler",
        }
        made = cls(cluster, jars, "SECURE", **settings)
        allowed = f"-D{'org.apache.kafka.sasl.oauthbearer.allowed'}"
        made._flags = (f"{allowed}.urls={token.as_uri()}", f"{allowed}.files={token}")
        return made

    @classmethod
    def by_certificate(cls, cluster: Secured, jars: Path) -> "JavaClient":
        # Java wants key and certificate in one PEM file.
        own = cluster.authority.leaf(cluster.folder / "loader", "CN=loader,O=Acme")
        store = cluster.folder / "loader.pem"
        store.write_text(Path(own.key).read_text() + Path(own.certificate).read_text())
        keystore = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
        return cls(cluster, jars, "CERTS", **{"security.protocol": "SSL"}, **keystore)

    async def run(self, program: str, *arguments: str, stdin: str = "") -> str:
        """Run a program with its configuration."""
        how = (*self._server, "--command-config", str(self._file))
        return await asyncio.to_thread(
            java, self._jars, program, *how, *arguments, stdin=stdin, flags=self._flags
        )

    async def produce(self, topic: str, value: str) -> None:
        await self.run(
            "org.apache.kafka.tools.ConsoleProducer", "--topic", topic, "--sync", stdin=f"{value}\n"
        )

    async def consume(self, topic: str) -> str:
        first = ("--partition", "0", "--offset", "earliest", "--max-messages", "1")
        text = await self.run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--topic", topic, *first, "--timeout-ms", "20000"),
        )
        return text.strip()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_java_clients_authenticate(cluster: Secured, jars: Path, mechanism: str) -> None:
    if mechanism == "certificate":
        client = JavaClient.by_certificate(cluster, jars)
    else:
        client = JavaClient.by_sasl(cluster, jars, mechanism)
    await client.produce("orders", "one")
    assert cluster.written("orders") == 1
    assert await client.consume("orders") == "one"


async def test_acls_apply_to_java_clients(cluster: Secured, jars: Path) -> None:
    writer = JavaClient.by_sasl(cluster, jars, "SCRAM-SHA-512", "writer")
    await writer.produce("orders", "one")
    # The message is Java's for TOPIC_AUTHORIZATION_FAILED.
    with pytest.raises(ProgramFailed, match=r"Not authorized to access topics: \[secret\]"):
        await writer.produce("secret", "two")
    assert await writer.consume("orders") == ""
    assert (cluster.written("orders"), cluster.written("secret")) == (1, 0)


async def test_wrong_password_is_reported_as_such(cluster: Secured, jars: Path) -> None:
    wrong = JavaClient.by_sasl(cluster, jars, "SCRAM-SHA-512", password="wrong")
    with pytest.raises(ProgramFailed, match="authentication failed: wrong user name or password"):
        await wrong.run("org.apache.kafka.tools.TopicCommand", "--list")


async def test_kafkas_tools_show_acls_credentials_and_quotas(cluster: Secured, jars: Path) -> None:
    users = (WRITER, READER, BOTH, ADMIN)
    # Super users have every right, which listing ACLs needs.
    await cluster.know(*users, super_users=("admin",), quotas=(quota("both", None, produce=1000),))
    admin = JavaClient.by_sasl(cluster, jars, "SCRAM-SHA-512", "admin")
    acls = await admin.run("org.apache.kafka.tools.AclCommand", "--list", "--topic", "orders")
    assert "principal=User:writer, host=*, operation=WRITE, permissionType=ALLOW" in acls
    told = await admin.run("kafka.admin.ConfigCommand", "--describe", "--entity-type", "users")
    assert "Quota configs for user-principal 'both' are producer_byte_rate=1000.0" in told
    assert "SCRAM credential configs for user-principal 'writer'" in told
