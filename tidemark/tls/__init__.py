"""Certificates by which the brokers and controllers of one cluster identify each other."""
