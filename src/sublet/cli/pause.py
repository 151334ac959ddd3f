"""`sublet pause`."""

from sublet.cli.job_verbs import verb

command = verb("pause", "Stop jobs for now; they keep their leases.")
