"""Kafka's on-disk file formats beside the record batches: pure codecs over bytes and text."""
