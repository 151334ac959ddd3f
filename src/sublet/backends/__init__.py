"""Ways to run a worker; today: processes on this machine."""
