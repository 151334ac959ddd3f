"""The web page of `sublet ui`: draws what the broker knows, and passes on what its user asks."""
