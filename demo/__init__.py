"""Twenty TensorFlow programs on one device: by hand, then with Sublet.

`python -m demo` on 2 GiB of the CPU; `python -m demo --device standin` on a GPU that is not there.
Owns the story and its figures; whatever it claims, it measures from outside.
"""
