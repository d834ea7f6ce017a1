"""Replicas and their roles: who leads, what is committed, how followers catch up."""
