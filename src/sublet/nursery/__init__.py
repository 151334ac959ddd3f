"""Runs in a nursery, the warm process that forks workers. Standard library and TensorFlow only."""
