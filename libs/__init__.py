"""Libraries: what several processes need in process. See ARCHITECTURE.md."""
