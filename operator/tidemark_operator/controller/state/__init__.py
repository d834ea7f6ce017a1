"""State of the controller: values, the indexes over them, and the drafts that change them.

The lowest room of the controller. It imports nothing from the decisions and statuses above it.
"""
