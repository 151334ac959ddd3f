"""What the broker tells, as tables in text and in HTML. Pure: draws snapshots, decides nothing."""
