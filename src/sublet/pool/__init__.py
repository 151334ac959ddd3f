"""Functions in leased workers: the pool, its tasks, and what takes the place of other pools.

    submit ─▶ calls that wait ─▶ seat (a thread) ─ job, streams, channel ─▶ broker ─▶ worker
                                      └──────── calls and results: the channel ────────┘

The broker hears of workers, never of arguments or results: those go straight.
"""
