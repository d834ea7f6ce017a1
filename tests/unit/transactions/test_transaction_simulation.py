"""Seeds of the simulation, and deliberate bugs that it has to find."""

import pytest

from tests.unit.transactions.transaction_simulation import Simulation


@pytest.mark.parametrize("seed", range(12))
def test_transactions_are_all_or_nothing(seed: int) -> None:
    simulation = Simulation(seed)
    assert simulation.run() == []
    outcomes = [transaction.outcome for transaction in simulation.transactions]
    # The run proves nothing without enough transactions of both outcomes, and failovers.
    assert outcomes.count("committed") > 20
    assert outcomes.count("aborted") > 5
    assert simulation.epoch > 3


@pytest.mark.parametrize(
    "bug", ["prepared is forgotten", "a partition is left out", "no verification"]
)
def test_simulation_finds_deliberate_bugs(bug: str) -> None:
    # Not every seed provokes the bug, so that there are three.
    found = [name for seed in range(3) for name in Simulation(seed, bug).run()]
    assert any(name.startswith(("lost write", "hanging", "G")) for name in found)
