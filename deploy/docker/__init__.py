"""What goes into the image besides the services: how containers get their keys, how they are probed."""
