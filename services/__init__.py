"""The services: a thin process each around its own domain, the same file names in every one."""
