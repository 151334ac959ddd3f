"""What runs inside a leased program: the only code that imports TensorFlow.

    hook ──▶ patches ──▶ formats.lease_environment  the variables TensorFlow reads when it starts
                     ──▶ config        the ConfigProto it starts with
                     ──▶ allocator     one region for the CPU allocator
                     ──▶ measure       keeps the usage file, once a second
                     ──▶ oom           what is written down when an allocation fails
                     ──▶ probe         a short run, where one was asked for
    in_process_lease                   a process that takes a lease itself while it runs
    pool_worker                        the program of a pool's worker
    warm_start                         turning a forked process into the user's program
    isolation                          keeping calls apart that share a process

It needs the standard library and TensorFlow, nothing else of Sublet, and Python 3.9: it is also
loaded by file location into interpreters where Sublet is not installed.
"""
