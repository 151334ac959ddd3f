"""`sublet pause`."""

from sublet.cli.acts import verb

command = verb("pause", "Stop jobs for now; they keep their leases.")
