"""Bytes that a peer, a disk or a store may hand over, and what must hold whatever they are.

``make fuzz SECONDS=600`` tries as many as fit into the time. What was found once stays
in ``corpus/`` and is tried by ``tests/unit/repository/test_fuzz_corpus.py``.
"""
