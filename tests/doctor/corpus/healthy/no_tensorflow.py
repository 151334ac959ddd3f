"""A program that only looks like one."""

import os
import threading

os.environ["TF_GPU_ALLOCATOR"] = "cuda_malloc"


def fit(rows):
    print(len(rows))


threads = [threading.Thread(target=fit, args=([1, 2],)) for _ in range(2)]
for thread in threads:
    thread.start()
