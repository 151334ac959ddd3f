"""Checks on the user's own machine what only its hardware can prove. Everything goes the way that
users go: small programs, run under leases by `sublet.run`."""
