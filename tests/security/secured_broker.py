"""A broker as a process that knows its clients: every protocol, users from its controller."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.integration.broker.broker_process import BrokerProcess
from tests.integration.broker.scripted_controller import ScriptedController
from tests.security.client_certificates import ClientAuthority, Leaf
from tests.user_states import user
from tidemark.wire.connection import KafkaConnection
from tidemark.wire.users import UserState

NODE = 1
LISTENERS = ("CLEAR", "CERTS", "SECURE", "OPEN")
PROTOCOLS = "CLEAR:PLAINTEXT,CERTS:SSL,SECURE:SASL_SSL,OPEN:SASL_PLAINTEXT"
ALL = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
PASSWORD = "correct horse, battery=staple"
ISSUER, AUDIENCE = "https://issuer.example", "tidemark"

WRITER = user("writer", "ALLOW WRITE TOPIC orders", "ALLOW DELETE TOPIC orders", password=PASSWORD)
READER = user("reader", "ALLOW READ TOPIC ord...", password=PASSWORD)


class TokenIssuer:
    """Signs tokens, and shows its key in a file."""

    def __init__(self, folder: Path) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.path = folder / "jwks.json"
        shown = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        keys = [{**shown, "kid": "k1", "alg": "RS256", "use": "sig"}]
        self.path.write_text(json.dumps({"keys": keys}))

    def token(self, name: str, *, seconds: float = 300, key: Any = None, **claims: Any) -> str:
        """Good for so long."""
        said = {"sub": name, "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time() + seconds)}
        return jwt.encode(said | claims, key or self.key, algorithm="RS256", headers={"kid": "k1"})


class Secured:
    """The broker, its controller, and what clients need."""

    def __init__(self, folder: Path, controller: ScriptedController, **config: Any) -> None:
        self.folder = folder
        self.controller = controller
        self.authority = ClientAuthority()
        self.server: Leaf = self.authority.leaf(folder / "listener", "CN=broker")
        self.issuer = TokenIssuer(folder)
        # One certificate for the two listeners with TLS, as a Secret mounts it.
        tls = {
            f"listener.name.{name}.tidemark.tls.directory": str(self.server.folder)
            for name in ("certs", "secure")
        }
        # One listener for each security protocol, all mechanisms, and a token issuer whose keys are
        # in a file.
        keys = {
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
            "listener.security.protocol.map": PROTOCOLS,
            "listener.name.certs.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ALL,
            "tidemark.sasl.unencrypted.secrets": True,
            "sasl.oauthbearer.jwks.endpoint.url": self.issuer.path.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        self.broker = BrokerProcess(NODE, folder, [controller.port], **(tls | keys | config))

    def address(self, listener: str) -> str:
        return self.broker.listener_of(listener)

    async def connect(self, listener: str = "OPEN") -> KafkaConnection:
        """A client of our own that speaks no TLS; the caller closes it."""
        host, _, port = self.address(listener).rpartition(":")
        return await KafkaConnection.connect(host, int(port), client_id="test")

    def written(self, topic: str) -> int:
        """Return the number of records in the topic's log."""
        folder = self.broker.log_dir / f"{topic}-0"
        return sum(_records(path) for path in folder.glob("*.log"))

    async def logged(self, text: str) -> None:
        """Wait until it is in the broker's log."""
        async with asyncio.timeout(10):
            while text not in self.broker.log_text():  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.05)

    async def know(self, *users: UserState, **how: Any) -> None:
        """Send the users to the broker, as the controller does."""
        await self.controller.send_users(*users, **how)


def _records(path: Path) -> int:
    data, position, found = path.read_bytes(), 0, 0
    # Batch headers have 61 bytes: the record count is at 57, the batch length at 8.
    while position + 61 <= len(data):
        found += int.from_bytes(data[position + 57 : position + 61], "big")
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return found


@asynccontextmanager
async def secured(
    folder: Path, *users: UserState, topics: tuple[str, ...] = ("orders", "secret"), **config: Any
) -> AsyncIterator[Secured]:
    """Started; without ``users`` its controller says nothing of any."""
    controller = await ScriptedController().start()
    made = Secured(folder, controller, **config)
    try:
        await made.broker.start()
        await controller.unfenced(NODE)
        for topic in topics:
            await controller.create_topic(topic, [(NODE,)])
        # A broker without an update about users rejects everyone.
        if users:
            await made.know(*users)
        yield made
    finally:
        if made.broker.process is not None and made.broker.process.returncode is None:
            await made.broker.kill()
        await controller.close()
