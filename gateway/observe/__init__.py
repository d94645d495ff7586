"""What can be seen from outside: metrics, logs and traces."""
