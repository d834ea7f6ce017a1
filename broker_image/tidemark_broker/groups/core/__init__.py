"""Decision logic of groups: requests and the current time are inputs, records and answers are
outputs.
"""
