"""Errors of requests to a Kafka cluster: those that may heal by themselves, and those that need
a person.
"""


class KafkaError(Exception):
    """A cluster did not execute a request; the text names the remedy where there is one."""


class Unreachable(KafkaError):
    """No answer: retry later. The request may have been executed."""


class ClusterRefused(KafkaError):
    """The cluster cannot be used with these settings: a retry cannot succeed."""
