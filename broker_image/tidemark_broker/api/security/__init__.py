"""Authentication, ACLs and users."""
