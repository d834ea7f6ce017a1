"""Who is the controller: the Lease that elects, the controller epoch that fences."""
