"""What the deployer decides, free of transport, storage and metrics."""
