"""Sockets of the broker: frames, order and limits. Independent of the meaning of requests."""
