"""Model endpoints behind the Open Inference Protocol."""
