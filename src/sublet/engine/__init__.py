"""The engine: a worker that holds models and runs their batches."""


def files_of(socket: str) -> str:
    """The directory of the engine with this socket: its owner makes it, and either removes it."""
    return socket.removesuffix(".sock") + ".files"
