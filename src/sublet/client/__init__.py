"""What talks to the broker: run, submit, lease, probe, logs."""
