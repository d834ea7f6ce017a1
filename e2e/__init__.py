"""Tests of the command line, and of whole clusters as it starts them."""
