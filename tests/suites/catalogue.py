"""All suites, in the order in which they run."""

from tests.suites.go_suites import FRANZ_GO, KAFKA_GO, SARAMA
from tests.suites.java_apps import JavaApps
from tests.suites.java_tools import JavaTools
from tests.suites.kafka_python import KafkaPython
from tests.suites.librdkafka import Librdkafka
from tests.suites.rdkafka_rs import RdkafkaRs
from tests.suites.suite import Suite

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        FRANZ_GO,
        KafkaPython(),
        JavaTools(),
        JavaApps(),
        SARAMA,
        KAFKA_GO,
        RdkafkaRs(),
        Librdkafka(),
    )
}
