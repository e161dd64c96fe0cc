"""Examples: tasks to publish, and the demo."""
