"""The broker's end of the control protocol: registration, heartbeats, commands, reports."""
