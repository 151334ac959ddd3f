"""Nothing: a nursery leaves the user's `sitecustomize` to its programs (`inside.warm_start.program`)."""
