"""The CEL rules of the configuration maps agree with the configuration table, key by key."""

import pytest

from tests.integration.admission.api_server import (
    AdmissionApi,
    AdmissionRefused,
    Object,
    cluster,
    topic,
)
from tidemark.configuration import table
from tidemark.configuration.problems import problems

pytestmark = pytest.mark.full

#: Texts at and beyond the bounds of every shape; each key is tried with each.
PROBES = (
    "", " ", "0", "-0", "1", "-1", "-2", "007", "+1", "1.0", "1.5", "0.5", ".5", "1e3", "9", "10",
    "17", "18", "22", "23", "-131072", "-131073", "1024", "1048575", "1048576", "2147483647",
    "2147483648", "999999999999999999", "1000000000000000000", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "99999999999999999999", "true", "false", "TRUE",
    "delete", "compact", "compact,delete", "delete , compact", "delete,compact,delete", "retain",
    "gzip", "zstd", "producer", "CreateTime", "LogAppendTime", "*", "0:1", "0:1,2:3", "0:1,", "1\n",
)  # fmt: skip


def _verdict(api: AdmissionApi, body: Object) -> str | None:
    try:
        api.try_create(body)
    except AdmissionRefused as refusal:
        return str(refusal)
    return None


def _compare(api: AdmissionApi, body: Object, found: tuple[str, ...], value: str) -> None:
    # The CRD and the table must agree on whether a value is valid, and on the reason.
    refusal_text = _verdict(api, body)
    assert (refusal_text is None) == (not found), (value, refusal_text)
    for problem in found:
        assert problem in (refusal_text or ""), value


@pytest.mark.parametrize("key", sorted(table.TOPIC))
def test_topic_key(api: AdmissionApi, key: str) -> None:
    # Every key with every probe: most bounds of a key are in the list.
    for value in PROBES:
        _compare(api, topic(config={key: value}), problems({key: value}, table.TOPIC), value)


@pytest.mark.parametrize("key", sorted(table.CLUSTER))
def test_cluster_key(api: AdmissionApi, key: str) -> None:
    for value in PROBES:
        _compare(api, cluster(config={key: value}), problems({key: value}, table.CLUSTER), value)


@pytest.mark.parametrize("key", sorted(table.GROUP))
def test_group_key(api: AdmissionApi, key: str) -> None:
    for value in PROBES:
        # Groups are configured per group name.
        found = problems({key: value}, table.GROUP)
        _compare(api, cluster(groups={"g": {key: value}}), found, value)
