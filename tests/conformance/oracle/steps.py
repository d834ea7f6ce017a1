"""Steps of stories: a request that may refer to values of earlier answers."""

from dataclasses import dataclass
from typing import Any

from tests.conformance.oracle import entities
from tests.conformance.oracle.case import OracleCase, case
from tests.conformance.oracle.entities import Fields, Here, Told
from tests.conformance.oracle.sides import SideWorld

#: What fields hold in answers that are errors.
_NOTHING = (None, "", -1)
PATIENCE = {"timeout": 5000}


@dataclass(frozen=True, slots=True)
class StoryStep:
    """``hears``: fields of the answer that later steps ask for."""

    api: str
    api_key: int
    what: str
    fields: Fields
    hears: tuple[str, ...] = ()

    def case(self, name: str, version: int) -> OracleCase:
        """In one version, of one round."""

        def build(world: SideWorld, version: int) -> Any:
            return entities.request(self.api_key, version, self.fields, Here(world, name))

        return case(name, self.api_key, version, build, self._learn if self.hears else None)

    def _learn(self, world: SideWorld, answer: Any) -> None:
        for name in self.hears:
            value = getattr(answer, name, None)
            # An error answer must not overwrite what earlier steps learned.
            if value not in _NOTHING:
                world.heard[name] = value


def step(api: str, api_key: int, what: str, /, hears: str = "", **fields: object) -> StoryStep:
    """With these fields; ``hears``: names, blanks between them."""
    return StoryStep(api, api_key, what, fields, tuple(hears.split()))


def heard(name: str, default: Any) -> Told:
    """Return the latest value of that name in an answer."""
    return lambda here: here.world.heard.get(name, default)


MEMBER = heard("member_id", "")
GENERATION = heard("generation_id", 1)
PRODUCER = {"producer_id": heard("producer_id", 1), "producer_epoch": heard("producer_epoch", 0)}
