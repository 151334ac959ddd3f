"""The words of Sublet as frozen records; a change makes a new record."""
