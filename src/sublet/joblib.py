"""joblib's parallel calls in leased workers. Importing this module registers the backend.

    import sublet.joblib

    with joblib.parallel_config("sublet", memory="1GiB"):
        losses = joblib.Parallel(n_jobs=4)(joblib.delayed(train)(rate) for rate in rates)

The options are those of `sublet.Pool`; as elsewhere in joblib, workers are reused unless
`reuse=False` is given. With `n_jobs=1`, and in nested parallel calls, joblib calls functions in
this process, without a lease.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Unpack, cast

import joblib
from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)

from sublet.pool.pool import Pool, PoolOptions
from sublet.pool.worker import in_a_worker

_JOBLIBS_OWN = ("max_nbytes", "temp_folder", "mmap_mode", "prefer", "require", "verbose", "context")
"""Options that joblib gives every backend; they have no meaning here."""


class SubletBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # No types there.
    """One pool for each `Parallel` call, or for each `with Parallel(...)` block."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, nesting_level: int | None = None, **options: Unpack[PoolOptions]) -> None:
        super().__init__(nesting_level=nesting_level)
        self._options: PoolOptions = {"reuse": True, **options}
        self._batches = self._options["reuse"] is True
        self._pool: Pool | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many calls run at a time; a negative number counts from the number of CPUs."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or in_a_worker():
            return 1
        return n_jobs if n_jobs > 0 else max(joblib.cpu_count() + 1 + n_jobs, 1)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: object) -> int:
        """Make a pool; options given to `Parallel` itself override those of the context."""
        workers = self.effective_n_jobs(n_jobs)
        if workers == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        if self._pool is not None:
            # Another call with the same configuration still runs, and will end its own pool.
            raise FallbackToBackend(type(self)(self.nesting_level, **self._options))
        mine = {name: value for name, value in options.items() if name not in _JOBLIBS_OWN}
        settings = cast(PoolOptions, {**self._options, **mine})
        self.parallel = parallel
        self._batches = settings["reuse"] is True
        self._pool = Pool(workers, **settings)
        return workers

    def compute_batch_size(self) -> int:
        """Short calls travel together, unless each gets a worker of its own."""
        return int(super().compute_batch_size()) if self._batches else 1

    def submit(
        self, func: Any, callback: Callable[[Future[Any]], object] | None = None
    ) -> Future[Any]:
        """Run a batch of calls in a worker."""
        assert self._pool is not None, "joblib configures a backend first"
        future = self._pool.submit(_Batch(func))
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """The results of a batch, in the callback of its future."""
        return out.result()

    def terminate(self) -> None:
        """Let the workers end: the parallel call is over."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End all calls, because one has failed."""
        if self._pool is not None:
            self._pool.terminate_workers()
        self.terminate()
        if ensure_ready:
            self.configure(self.parallel.n_jobs, self.parallel, **self.parallel._backend_kwargs)

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Nested parallel calls run one after another."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None


class _Batch:
    """A batch of joblib's, named after the function that it calls."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.func = batch.items[0][0]

    def __call__(self) -> Any:
        return self.batch()


joblib.register_parallel_backend("sublet", SubletBackend)
