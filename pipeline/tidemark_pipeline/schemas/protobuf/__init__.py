"""Protobuf: descriptors, their columns, and messages into Arrow."""
