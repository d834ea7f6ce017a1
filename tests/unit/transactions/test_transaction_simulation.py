"""Seeds of the simulation; and that it finds what is broken on purpose."""

import pytest

from tests.unit.transactions.transaction_simulation import Simulation


@pytest.mark.parametrize("seed", range(12))
def test_transactions_are_all_or_nothing(seed: int) -> None:
    simulation = Simulation(seed)
    assert simulation.run() == []
    outcomes = [transaction.outcome for transaction in simulation.transactions]
    assert outcomes.count("committed") > 20
    assert outcomes.count("aborted") > 5
    assert simulation.epoch > 3


@pytest.mark.parametrize(
    "bug", ["prepared is forgotten", "a partition is left out", "no verification"]
)
def test_what_is_broken_is_found(bug: str) -> None:
    found = [name for seed in range(3) for name in Simulation(seed, bug).run()]
    assert any(name.startswith(("lost write", "hanging", "G")) for name in found)
