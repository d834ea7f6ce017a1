"""Reading of a topic as rows: options, plan, and the tasks that executors run."""
