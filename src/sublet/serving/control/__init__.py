"""Runs in `sublet serve` itself: what is served, where, and by which processes."""
