"""`sublet cancel`."""

from sublet.cli.job_verbs import verb

command = verb("cancel", "End jobs, or take them out of the queue.")
