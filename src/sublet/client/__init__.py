"""The client's side of the broker's socket, and the journeys that use it."""
