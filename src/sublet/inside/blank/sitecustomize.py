"""Empty: a nursery leaves the user's `sitecustomize` to its programs (`warm_start.program`)."""
