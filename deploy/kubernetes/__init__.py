"""Manifests for Kubernetes, and what makes the Secrets that they refer to."""
