"""Runs at the start of every Python interpreter of a leased program, its children included.

Installs the hook, by file location. Then it removes its own directory from `sys.path`, and runs the
next `sitecustomize`, as if this one were not here. It never imports TensorFlow and never fails: a
program without the hook is better than no program.
"""

import sys


def _install() -> None:
    import os

    sublet = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    # Under a name of its own: Sublet need not be installed here, and if it is, it may be another.
    name = "_sublet"
    package = type(sys)(name)
    package.__path__ = [sublet]
    package.__package__ = name
    package.__file__ = os.path.join(sublet, "__init__.py")
    sys.modules[name] = package
    # The package under the private name given to it above: no checker finds that.
    from _sublet.inside import hook  # type: ignore[import-not-found]

    hook.install()
    if "SUBLET_STACK_SIGNAL" in os.environ:  # Of a cluster; all others need not load it.
        from _sublet.inside import stack_dump

        stack_dump.listen()


def _run_next() -> None:
    import os
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        # What `site` expects where there is none.
        raise ImportError("no other sitecustomize", name="sitecustomize")
    module = type(sys)("sitecustomize")
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__file__ = spec.origin
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _install()
except Exception as wrong:
    if sys.stderr is not None:
        sys.stderr.write(f"sublet: the lease's limits could not be installed: {wrong!r}\n")

_run_next()
