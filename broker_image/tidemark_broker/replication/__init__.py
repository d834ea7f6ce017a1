"""Replicas and their roles: leadership, the ISR and commits, followers and their catch-up."""
