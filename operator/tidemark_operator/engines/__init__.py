"""Engines that manage the topics, and the port that they have in common."""
