"""Why a Kafka cluster did not do what was asked: what may heal by itself, and what a person has to
mend."""


class KafkaError(Exception):
    """A cluster did not do what was asked; the text says what to do where anybody can."""


class Unreachable(KafkaError):
    """No answer: ask again later. What was asked may have been done."""


class Refused(KafkaError):
    """The cluster cannot be spoken to as it was said: nothing heals that but a person."""
