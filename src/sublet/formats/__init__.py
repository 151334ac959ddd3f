"""What processes leave for each other in files, variables and packets: written on one side, read on
the other. Standard library only."""
