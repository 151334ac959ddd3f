"""A mixed load in one home, a random fault each second, and a checker of what came of it.

    load ──programs──▶ history (outside the home)  ─┐
    faults: kill, stop, full disk, clock jump       ├──▶ checker ──▶ what broke a promise
    samples of the ledger and of `status`           ─┘

`make chaos MINUTES=30` runs it; a short one is a test.
"""
