"""`sublet retry`."""

from sublet.cli.acts import verb

command = verb("retry", "Do finished jobs again, with the environment of this shell.")
