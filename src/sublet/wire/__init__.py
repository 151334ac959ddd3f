"""What clients and the broker say to each other, and how it crosses the socket."""
