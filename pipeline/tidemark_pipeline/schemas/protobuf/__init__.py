"""Protobuf: descriptors, what columns they come to, and messages into Arrow."""
