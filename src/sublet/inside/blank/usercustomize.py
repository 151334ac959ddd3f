"""Nothing: a nursery leaves the user's `usercustomize` to its programs (`inside.warm_start.program`)."""
