"""What `sublet selftest` runs under leases: a script like any other, in a directory of its own.

    program.py look        says which TensorFlow this is, and which GPUs it finds
    program.py hold MIB    takes so much memory in small pieces, says how far it got, and waits
    program.py driver MIB  takes memory from the driver, as other frameworks do: so much, and then
                           more than any lease is charged that has what the driver shows

Prints one line of JSON. `hold` goes on when its input ends, and fails then if it was refused.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

PIECE = 8
"""MiB in one piece."""
_BESIDE = 4 << 30
"""More than a process costs a GPU beside its pool."""


def look() -> None:
    import tensorflow as tf
    from tensorflow.python.platform import build_info

    built = dict(build_info.build_info)
    gpus = []
    if tf.config.list_logical_devices("GPU"):  # This starts the runtime, and so CUDA.
        for gpu in tf.config.list_physical_devices("GPU"):
            details = tf.config.experimental.get_device_details(gpu)
            gpus.append(details.get("device_name", "?"))
    try:
        from sublet.inside.cuda_libraries import missing_libraries

        missing = missing_libraries()
    except Exception:
        missing = []  # An interpreter without Sublet.
    answer(
        tensorflow=tf.__version__,
        cuda_build=bool(built.get("is_cuda_build")),
        cuda=str(built.get("cuda_version", "")),
        cudnn=str(built.get("cudnn_version", "")),
        missing=missing,
        gpus=gpus,
    )


def hold(mib: int) -> None:
    import tensorflow as tf

    kept: list[Any] = []
    refused = None
    try:
        while PIECE * len(kept) < mib:
            kept.append(tf.fill([PIECE << 18], 1.0))
    except tf.errors.ResourceExhaustedError as error:
        refused = error
    answer(
        mib=PIECE * len(kept),
        on=kept[0].device.rpartition("device:")[2] if kept else "",
        refused=None if refused is None else str(refused)[:300],
    )
    sys.stdin.read()
    if refused is not None:
        raise refused


def driver(mib: int) -> None:
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")
    context, left, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    if cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
        sys.exit("the driver gives no context")
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total))

    def takes(amount: int) -> bool:
        at = ctypes.c_uint64()
        return not cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(amount))

    answer(total=total.value, some=takes(mib << 20), more=takes(total.value + _BESIDE))


def answer(**facts: object) -> None:
    print(json.dumps({"pid": os.getpid(), **facts}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "look":
        look()
    elif sys.argv[1] == "driver":
        driver(int(sys.argv[2]))
    else:
        hold(int(sys.argv[2]))
