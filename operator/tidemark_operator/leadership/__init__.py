"""Who is the controller: the Lease, the controller epoch, and the take-over of the slices."""
