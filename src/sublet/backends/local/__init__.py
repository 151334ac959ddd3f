"""Workers as processes of this machine.

`backend` implements the `Backend` protocol. What runs in the programs' own interpreters is in
`sublet.nursery` and `sublet.keeper`.
"""
