"""`sublet retry`."""

from sublet.cli.job_verbs import verb

command = verb("retry", "Do finished jobs again, with the environment of this shell.")
