"""The stock clients as a user of a secured cluster sets them up: one record out, and back in.

Blocking, but for aiokafka: call them in a thread.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokenProvider

from tests.security.client_certificates import Leaf


@dataclass(frozen=True, kw_only=True)
class Login:
    """Credentials of a client. ``token`` replaces a password; ``own``: a certificate to show."""

    bootstrap: str
    protocol: str
    mechanism: str = ""
    name: str = ""
    password: str = ""
    token: Callable[[], str] | None = None
    trusted: str = ""
    own: Leaf | None = None


class ClientError(Exception):
    """Error that the client reported."""


def confluent(login: Login, topic: str, value: bytes | None) -> bytes:
    """Produce ``value`` (None: nothing); then read the first record."""
    settings: dict[str, Any] = {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": login.protocol,
        "socket.timeout.ms": 10_000,
    }
    # Each setting is what a user's configuration has, and no more.
    if login.trusted:
        settings["ssl.ca.location"] = login.trusted
    if login.own is not None:
        settings["ssl.certificate.location"] = login.own.certificate
        settings["ssl.key.location"] = login.own.key
    if login.mechanism:
        settings["sasl.mechanism"] = login.mechanism
    # A callback supplies the token and its expiry. Others authenticate by name and password.
    token = login.token
    if token is not None:
        settings["oauth_cb"] = lambda _: (token(), 4e9)
    elif login.mechanism:
        settings |= {"sasl.username": login.name, "sasl.password": login.password}
    if value is not None:
        _confluent_produce(settings, topic, value)
        return value
    return _confluent_consume(settings, topic)


def _confluent_produce(settings: dict[str, Any], topic: str, value: bytes) -> None:
    errors: list[str] = []
    said: list[Any] = []
    own = {"error_cb": lambda error: errors.append(str(error)), "message.timeout.ms": 8000}
    producer = Producer(settings | own)
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: said.append(error))
    # librdkafka retries a rejected login for ever, so the error callback ends the wait.
    for _ in range(100):
        producer.poll(0.1)
        if said or any("uthenticat" in error for error in errors):
            break
    if not said or said[0] is not None:
        producer.purge()
        raise ClientError(f"{said} {errors}")


def _confluent_consume(settings: dict[str, Any], topic: str) -> bytes:
    errors: list[str] = []
    own = {"group.id": "none", "enable.auto.commit": False, "error_cb": errors.append}
    consumer = Consumer(settings | own)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(100):
            message = consumer.poll(0.1)
            if errors and any("uthenticat" in str(error) for error in errors):
                raise ClientError(str(errors))
            if message is None:
                continue
            if message.error() is not None:
                if message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # librdkafka looks for the coordinator of a group it does not use
                raise ClientError(str(message.error()))
            return bytes(message.value())
        raise ClientError(f"nothing came: {errors}")
    except KafkaException as error:
        raise ClientError(str(error)) from error
    finally:
        consumer.close()


class _PythonToken(PythonTokenProvider):  # type: ignore[misc]
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def token(self) -> str:
        return self._token()


def _context(login: Login) -> ssl.SSLContext | None:
    if not login.trusted:
        return None
    context = ssl.create_default_context(cafile=login.trusted)
    if login.own is not None:
        context.load_cert_chain(login.own.certificate, login.own.key)
    return context


def kafka_python(
    login: Login, topic: str, value: bytes | None, *, version: tuple[int, ...] | None = None
) -> bytes:
    """Produce and read a value, as :func:`confluent`.

    ``version``: of the broker, which the client then does not request.
    """
    settings: dict[str, Any] = {
        "api_version": version,
        "bootstrap_servers": login.bootstrap,
        "security_protocol": login.protocol,
        "ssl_context": _context(login),
        "bootstrap_timeout_ms": 8000,
    }
    # SASL settings depend on the mechanism: a token, or a name and a password.
    if login.mechanism:
        settings["sasl_mechanism"] = login.mechanism
    if login.token is not None:
        settings["sasl_oauth_token_provider"] = _PythonToken(login.token)
    elif login.mechanism:
        settings["sasl_plain_username"] = login.name
        settings["sasl_plain_password"] = login.password
    if value is not None:
        producer = KafkaProducer(
            **settings, acks="all", enable_idempotence=False, max_block_ms=10_000
        )
        try:
            producer.send(topic, value, partition=0).get(10)
        finally:
            producer.close(timeout=5)
        return value
    # Assigned and not subscribed, because the user may have no rights on groups.
    consumer = KafkaConsumer(**settings, group_id=None)
    try:
        place = PythonTopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        # Twenty polls of 0.5 s: a rejected client never returns a record.
        for _ in range(20):
            for records in consumer.poll(timeout_ms=500).values():
                return bytes(records[0].value)
        raise ClientError("nothing came")
    finally:
        consumer.close(timeout_ms=5000)


class _AioToken(AioTokenProvider):  # type: ignore[misc]
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token()


async def _aiokafka(login: Login, topic: str, value: bytes | None) -> bytes:
    settings: dict[str, Any] = {
        "bootstrap_servers": login.bootstrap,
        "security_protocol": login.protocol,
        "ssl_context": _context(login),
    }
    # The same distinction as above, under aiokafka's names.
    if login.mechanism:
        settings["sasl_mechanism"] = login.mechanism
    if login.token is not None:
        settings["sasl_oauth_token_provider"] = _AioToken(login.token)
    elif login.mechanism:
        settings["sasl_plain_username"] = login.name
        settings["sasl_plain_password"] = login.password
    if value is not None:
        producer = AIOKafkaProducer(**settings, acks="all")
        try:
            await producer.start()
            await producer.send_and_wait(topic, value, partition=0)
        finally:
            await producer.stop()
        return value
    # Without a group, as the user may have no rights on any.
    consumer = AIOKafkaConsumer(**settings, group_id=None)
    try:
        await consumer.start()
        place = AioTopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        return bytes((await asyncio.wait_for(consumer.getone(), 10)).value)
    finally:
        await consumer.stop()


def aiokafka(login: Login, topic: str, value: bytes | None) -> bytes:
    """As :func:`confluent`, on a loop of its own."""
    return asyncio.run(_aiokafka(login, topic, value))


CLIENTS = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}
