"""What can be seen from outside: metrics and logs."""
