"""Job traces on a virtual clock: what the admission policy would have done, beside others.

Never starts a program, never asks the broker; the policy is the one that the broker runs.
"""
