"""`sublet cancel`."""

from sublet.cli.acts import verb

command = verb("cancel", "End jobs, or take them out of the queue.")
