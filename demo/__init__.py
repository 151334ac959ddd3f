"""Twenty TensorFlow programs on one CPU device of 2 GiB: by hand, then with Sublet.

`python -m demo`. Owns the story and its figures; whatever it claims, it measures from outside.
"""
