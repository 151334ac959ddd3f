"""Empty: a nursery leaves the user's `usercustomize` to its programs (`warm_start.program`)."""
