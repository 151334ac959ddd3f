"""`sublet resume`."""

from sublet.cli.acts import verb

command = verb("resume", "Let paused jobs go on.")
