"""``make export-day``: the files of an exported table after a day of commits, with maintenance."""
