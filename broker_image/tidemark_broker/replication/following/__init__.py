"""Replicas that follow: what they ask of their leader, how it answers, what they make of it."""
