"""`make e2e`: images, charts and pods on a real kubelet. No test: a program of its own."""
