"""Kafka's configuration keys, each described once.

Admission, the broker's parsing, every default and ``docs/reference/configuration.md`` are made
from this one
table. ``values``: what a text must look like; ``key``: what is known of one key; ``topic_keys`` and
``broker_keys``: the table; ``table``: looking up in it; ``problems``: what is wrong with a
configuration; ``layers``: which of several settings holds; ``page``: the table for people.
"""
