"""What runs the services together: the local stack, Prometheus and Grafana, the client wheel."""
