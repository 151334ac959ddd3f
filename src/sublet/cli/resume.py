"""`sublet resume`."""

from sublet.cli.job_verbs import verb

command = verb("resume", "Let paused jobs go on.")
