"""Runs in a keeper: the small parent of one worker, and its witness. Standard library only."""
