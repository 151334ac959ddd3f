"""Runs in a nursery: the warm process that forks keepers and workers. Standard library and
TensorFlow only."""
