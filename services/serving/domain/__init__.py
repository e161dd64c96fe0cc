"""What serving does, free of transport and store."""
