"""Client listeners of a broker, created from its configuration."""

import asyncio
import ssl
from collections.abc import Callable, Mapping

from tidemark.tls.files import ListenerFiles
from tidemark.wire.control import Endpoint
from tidemark_broker.admission.connection_limits import ConnectionLimits
from tidemark_broker.admission.rate import Windows
from tidemark_broker.api.serving.dispatcher import Dispatcher
from tidemark_broker.api.serving.sessions import ConnectionSessions, ProofLimits
from tidemark_broker.config import BrokerConfig
from tidemark_broker.config_entries import accepted, values_of
from tidemark_broker.listeners import OAUTHBEARER, ClientAuth, ClientListener
from tidemark_broker.net.connections import Connections
from tidemark_broker.net.metrics import NetMetrics
from tidemark_broker.net.server import KafkaServer
from tidemark_broker.security.sasl import Verifier
from tidemark_broker.security.tokens import TokenChecker, TokenSettings
from tidemark_broker.security.user_store import UserStore

_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def user_store(config: BrokerConfig) -> UserStore:
    """Return an empty store of users, ACLs and quotas with the configured defaults."""
    everyone = accepted(config.entries, "allow.everyone.if.no.acl.found")
    windows = Windows(
        config.integer("quota.window.num"), config.integer("quota.window.size.seconds")
    )
    return UserStore(if_none=everyone == "true", windows=windows)


class ClientListeners:
    """The client listeners by name, in the order of ``listeners``."""

    def __init__(
        self, config: BrokerConfig, dispatcher: Dispatcher, users: UserStore, metrics: NetMetrics
    ) -> None:
        """Create one server for each client listener of the configuration. Nothing is bound yet."""
        self._config = config
        #: Checks passwords, SCRAM proofs and bearer tokens, in threads of its own.
        self._verifier = Verifier(users, _token_checker(config))
        # Limits of connections and memory apply to all listeners together.
        connections = Connections(ConnectionLimits.of(config.entries), metrics)
        limits = ProofLimits(**values_of(ProofLimits, config.entries))
        # Until the controller has sent the users, an authenticating listener delays its sessions.
        waits = any(listener.authenticates for listener in config.clients)
        self.servers: Mapping[str, KafkaServer] = {
            listener.name: KafkaServer(
                ConnectionSessions(
                    listener, dispatcher, self._verifier, limits, waits_for_users=waits
                ).open,
                connections,
                listener.name,
                _contexts(listener),
            )
            for listener in config.clients
        }

    async def bind(self) -> None:
        """Bind the addresses without accepting connections. Raises ``OSError``."""
        for name, server in self.servers.items():
            address = self._config.listeners[name]
            await server.bind(address.host, address.port)

    async def listen(self) -> None:
        """Accept connections on all listeners. Raises ``OSError``."""
        for server in self.servers.values():
            await server.listen()

    async def stop(self, grace_s: float = 1.0) -> None:
        """Stop all listeners. See :meth:`KafkaServer.stop`."""
        await asyncio.gather(*(server.stop(grace_s) for server in self.servers.values()))
        # Open sessions may still verify passwords in the verifier's threads, so it closes last.
        self._verifier.close()

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the advertised endpoints, with ports as bound."""
        return tuple(
            self._config.advertised_endpoint(name, server.port)
            for name, server in self.servers.items()
        )


def _token_checker(config: BrokerConfig) -> TokenChecker | None:
    # Without OAUTHBEARER no key set is fetched, so the settings need not exist either.
    if not any(OAUTHBEARER in listener.mechanisms for listener in config.clients):
        return None
    return TokenChecker(TokenSettings.of(config.entries))


def _contexts(listener: ClientListener) -> Callable[[], ssl.SSLContext] | None:
    if listener.tls_directory is None:
        return None
    return ListenerFiles(listener.tls_directory, _VERIFY[listener.client_auth]).context
