"""Many TensorFlow programs on one device, each under a lease that TensorFlow enforces."""

__version__ = "0.1.0"
