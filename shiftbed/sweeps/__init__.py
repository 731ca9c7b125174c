"""Many jobs: planning, executors, and reading what they recorded."""
