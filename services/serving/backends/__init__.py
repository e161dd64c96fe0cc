"""What executes models."""
