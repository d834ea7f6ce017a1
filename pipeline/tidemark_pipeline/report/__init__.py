"""Report about a topic's records: its figures and its HTML page."""
