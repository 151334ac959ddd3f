"""What is wrong with a program, a log or a machine, in a sentence, and the fix in a line.

Reads and never runs: a script as a syntax tree, a log as text, a machine as facts. Each rule is a
file in `rules`. Never imports TensorFlow.
"""
