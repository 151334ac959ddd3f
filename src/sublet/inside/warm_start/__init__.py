"""Turns a process that was forked warm into the user's program, which cannot tell."""
