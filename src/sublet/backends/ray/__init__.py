"""Workers on the nodes of a Ray cluster.

`backend` implements the `Backend` protocol. An attempt there has a process here that stands for it,
its relay; both the relay and what speaks to Ray are in `sublet.nodes`. Nothing here imports Ray.
"""
