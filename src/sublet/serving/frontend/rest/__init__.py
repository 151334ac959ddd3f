"""The HTTP front end: TensorFlow Serving's REST API and the Open Inference Protocol, version 2.

    bytes → Connection (framing, limits, order) → Router (which API) → ModelBackend → reply bytes

A connection knows nothing of models, and an API knows nothing of sockets. Whatever a client sends,
it gets an HTTP reply with JSON in it, or is cut off for being slow.
"""

from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.rest.server import Server

__all__ = ["Limits", "Server"]
