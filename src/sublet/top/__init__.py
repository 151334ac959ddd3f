"""`sublet top`: the broker's snapshots, live in a terminal. Decides nothing.

Only this package imports Textual, and only the command `top` imports this package.
"""
