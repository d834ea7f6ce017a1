"""Transactions (KIP-98): the coordinator on ``__transaction_state``, markers, and the
verification of producers (KIP-890).
"""
