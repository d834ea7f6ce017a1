"""Builders of topic changes as a broker forwards them."""

from typing import Any

from tidemark.wire.topics import (
    ChangeKind,
    ChangeTopicsRequest,
    Setting,
    SettingOperation,
    TopicChange,
)


def settings(**values: str | None) -> tuple[Setting, ...]:
    """Return settings by keys with underscores for dots; None removes a key."""
    return tuple(
        Setting(
            name=name.replace("_", "."),
            value=value,
            operation=SettingOperation.DELETE if value is None else SettingOperation.SET,
        )
        for name, value in values.items()
    )


def change(kind: ChangeKind, name: str = "t", **fields: Any) -> TopicChange:
    return TopicChange(kind=kind, name=name, **({"topic_id": None} | fields))


def create(name: str = "t", partitions: int = 1, replicas: int = 1, **fields: Any) -> TopicChange:
    counts = {"partitions": partitions, "replication_factor": replicas}
    return change(ChangeKind.CREATE, name, **counts, **fields)


def request(*changes: TopicChange, **fields: Any) -> ChangeTopicsRequest:
    base: dict[str, Any] = {
        "broker_id": 1,
        "broker_epoch": 1,
        "principal": "User:alice",
        "host": "10.0.0.7",
        "validate_only": False,
    }
    return ChangeTopicsRequest(**(base | fields), changes=changes)
