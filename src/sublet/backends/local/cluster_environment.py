"""The variables that a task of a tf.distribute cluster reads: TF_CONFIG and what goes with it."""

import json

from sublet.domain.job import Job
from sublet.formats import stack_dump

TF_CONFIG = "TF_CONFIG"
_HOST = "127.0.0.1"


def cluster_environment(job: Job, environ: dict[str, str]) -> dict[str, str]:
    """What is added to the user's environment for this task; what the user has set stays, but for
    TF_CONFIG."""
    gang, lease = job.spec.gang, job.lease
    if gang is None or lease is None:
        return {}
    role, index = gang.role, gang.index
    cluster: dict[str, list[str]] = {}
    hosts = lease.hosts or (_HOST,) * len(lease.ports)
    for (other, _), host, port in zip(gang.tasks, hosts, lease.ports, strict=True):
        if other != "evaluator":  # It stands beside the cluster, and nobody connects to it.
            cluster.setdefault(other, []).append(f"{host}:{port}")
    config = {"cluster": cluster, "task": {"type": role, "index": index}}
    usual = {
        # A proxy that is set for the Internet is no way to these machines.
        "no_grpc_proxy": ",".join(dict.fromkeys((*hosts, _HOST, "localhost"))),
        # The lines of all tasks are shown as they come.
        "PYTHONUNBUFFERED": "1",
        stack_dump.VARIABLE: str(stack_dump.SIGNAL),
    }
    if "ps" in cluster:
        # As TensorFlow's guide to parameter servers has it: a call to a task that is not there yet
        # waits, and one that waits for others leaves a thread for those.
        usual["GRPC_FAIL_FAST"] = "use_caller"
        threads = len(cluster.get("worker", [])) + 1
        if len(lease.cpus or job.spec.surroundings.affinity) < threads:
            usual["TF_NUM_INTEROP_THREADS"] = str(threads)
    added = {name: value for name, value in usual.items() if name not in environ}
    return added | {TF_CONFIG: json.dumps(config)}
