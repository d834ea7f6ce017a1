"""Bytes of topics in the tier, and what another policy would free."""
