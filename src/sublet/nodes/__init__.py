"""Jobs on the nodes of a Ray cluster.

relay    here, one for each attempt: stands for the program, and has its streams
bridge   here, one for each cluster: the only process that is connected to it
agent    on each node: a detached actor, a client of that node's own broker

Only `bridge` and `agent` import Ray.
"""
