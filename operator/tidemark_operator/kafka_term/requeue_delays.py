"""How long a Topic on Apache Kafka waits until it is looked at, or asked for, again, in seconds."""

LOOK_AGAIN_S = 5.0
#: A topic that was there is gone only once no broker has known it for so long.
GONE_S = 10.0
#: What a person has to mend is asked of Kafka again after so long.
REFUSED_S = 30.0
#: Whether what stands in a topic's way is still so.
RECHECK_S = 10.0
#: What was just made may not be known yet to the broker that is asked.
KNOWN_TRIES, KNOWN_S = 12, 0.05
