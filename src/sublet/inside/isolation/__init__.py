"""Keeps calls apart that share one process: threads, random numbers, Keras settings, sessions."""
