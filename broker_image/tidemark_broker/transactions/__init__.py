"""Transactions (KIP-98): the coordinator on ``__transaction_state``, its markers, and what leaders
ask it about producers (KIP-890)."""
