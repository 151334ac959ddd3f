"""Functions in leased workers: the pool, its tasks, and the backends of other pools.

    submit ─▶ scheduler ─▶ dispatcher (a thread) ─ job, streams, channel ─▶ broker ─▶ worker
                                 └──────── calls and results: the channel ────────┘

The broker starts workers but never sees arguments or results, which go through the channel.
"""
