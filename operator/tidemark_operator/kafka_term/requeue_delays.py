"""Delays before a Topic on Apache Kafka is read or changed again, in seconds."""

LOOK_AGAIN_S = 5.0
#: Time for which no broker must know an existing topic before it counts as deleted.
GONE_S = 10.0
#: Delay before a request is repeated that a person has to fix.
REFUSED_S = 30.0
#: Delay before a blocker is checked again.
RECHECK_S = 10.0
#: A broker may not know yet what was just created.
KNOWN_TRIES, KNOWN_S = 12, 0.05
