"""Election of the controller by a Lease, and fencing by the controller epoch."""
