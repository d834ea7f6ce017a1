"""Generations of leader epochs, which separate decisions before a rebuild from those after it.

A controller that has lost its decisions continues from the brokers' reports, with epochs that are
so much higher that none is used twice. The part of an epoch above :data:`GENERATION` therefore
shows whether two states belong to one unbroken history. Across a rebuild, absence from a row proves
nothing: the broker may only not have reported yet.
"""

#: By how much a rebuilding raises leader epoch and partition epoch.
GENERATION = 2**20


def same_generation(epoch: int, other: int) -> bool:
    """Return whether no rebuild happened between these two leader epochs of a partition."""
    return epoch // GENERATION == other // GENERATION
