"""The gateway: the only door to Isthmus, and the cloud end of the devices' tunnel (`tunnel`)."""
