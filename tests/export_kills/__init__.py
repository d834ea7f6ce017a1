"""``make export-kills``: an export whose processes are killed at every step of a commit."""
