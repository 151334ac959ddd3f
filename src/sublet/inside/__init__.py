"""What runs inside a leased program.

    hook ──▶ patches ──▶ current_lease  the lease of this process, and its environment
                     ──▶ config        the ConfigProto that TensorFlow starts with
                     ──▶ allocator     one region for the CPU allocator
                     ──▶ measure       keeps the usage file, once a second
                     ──▶ oom           what is written down when an allocation fails
                     ──▶ probe         a short run, where one was asked for
    in_process_lease                   a lease that a running process takes itself
    pool_worker                        the program of a pool's worker
    warm_start                         turning a forked process into the user's program
    training                           batches that do not fit, in micro-batches
    isolation                          keeping calls apart that share a process

It needs the standard library, TensorFlow and `formats`, nothing else of Sublet, and Python 3.9: it
is also loaded by file location into interpreters where Sublet is not installed.
"""
