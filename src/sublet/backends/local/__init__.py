"""Workers as processes of this machine.

`launcher` is the broker's side. `nursery`, `keeper` and what they use run in the program's own
interpreter, which may have none of Sublet's dependencies: standard library only.
"""
