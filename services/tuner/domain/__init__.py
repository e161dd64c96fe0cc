"""What the tuner is, apart from transports and stores."""
