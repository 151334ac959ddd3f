"""Which trials a sweep tries, and how far each is trained: a module for each way to search."""
