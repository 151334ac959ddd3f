"""What one more TensorFlow process costs a GPU beside its own memory pool: an estimate."""

from sublet.units import GiB, MiB

_SMALL_DEVICE = 225 * MiB
_BY_GENERATION = ((6, 500 * MiB), (7, 1050 * MiB), (8, 1536 * MiB))
_NEWEST = 1800 * MiB


def context_overhead(compute: tuple[int, int] | None, capacity: int) -> int:
    """Bytes for the CUDA context, the cuDNN and cuBLAS handles and the kernels of one process.

    TensorFlow's own reserve table (MinSystemMemory in gpu_device.cc), to be used until the device
    has been measured. Where the compute capability is unknown the largest is taken: too much makes
    a lease wait, too little makes a program die.
    """
    if capacity < 2 * GiB:
        return _SMALL_DEVICE
    if compute is None:
        return _NEWEST
    generation = compute[0]
    return next((bytes_ for last, bytes_ in _BY_GENERATION if generation <= last), _NEWEST)
