"""Times that the processes of `sublet.nodes` agree on, in seconds."""

import os

FENCE = float(os.environ.get("SUBLET_RAY_FENCE") or 75.0)
"""After a node is said to be dead: until then programs may go on there. Ray's own processes on a
node that is cut off end after 60; the programs with them, in 10 more."""
LOST_AFTER = 60.0 + FENCE
"""Without a word from the cluster: as long, after the time in which the network may come back."""
CLIENTLESS = 120.0
"""After which an agent ends programs that a client waits for, if nobody asks for them."""
IDLE = 60.0
"""After which a bridge that nobody needs ends, and an agent without programs."""
NO_ROOM = 20.0
"""For which an attempt waits for room on its node, before it goes back to the queue at home."""
