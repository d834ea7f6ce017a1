"""Leader epochs in generations: what was decided before a rebuilding, and after it.

A controller that has lost what it had decided goes on from what brokers report, with epochs that
are so much higher that none is used twice. So the part of an epoch above :data:`GENERATION` tells
whether two states come from one unbroken history. Across a rebuilding absence from a row says
nothing: who is not in it may only not have been heard.
"""

#: By how much a rebuilding raises leader epoch and partition epoch.
GENERATION = 2**20


def same_generation(epoch: int, other: int) -> bool:
    """Was no partition rebuilt between these two of its leader epochs?"""
    return epoch // GENERATION == other // GENERATION
