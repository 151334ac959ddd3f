"""The variables of the environment that packages read when they are loaded.

A program that was forked warm finds TensorFlow loaded with the nursery's variables. So a variable
is either equal in both, as part of the nursery's key, or read again for the program (`settings`); a
program that sets another one itself is started cold.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


NATIVE = _names(
    """
    DISABLE_HOST_SEND_RECV_REGISTRATION FREETYPE_PROPERTIES JE_ARROW_MALLOC_CONF
    LLVM_OVERRIDE_PRODUCER TF_CPP_MAX_VLOG_LEVEL TF_CPP_VMODULE TF_CUFFT_WORKSPACE_LIMIT_IN_MB
    TF_DISABLE_JIT_KERNELS
    TF_ENABLED_DEVICE_TYPES TF_ENABLE_MKL_NATIVE_FORMAT TF_ENABLE_ONEDNN_OPTS TF_ENABLE_ZENDNN_OPTS
    TF_REALLY_LOAD_UNSAFE_PACKAGES TF_USE_MODULAR_FILESYSTEM
    """
)
"""Variables that C code reads when its library is loaded."""
NATIVE_PREFIXES = tuple(
    _names(
        """
        DNNL_ GCS_ GFORTRAN_ GLIBC_ GOTO_ GRPC_ HDF5_ KMP_ LD_ MALLOC_ MKL_ NPY_ NUMPY_ OMP_ ONEDNN_
        OPENBLAS_ OPENSSL_
        """
    )
)
"""Prefixes of such variables."""
PYTHON = _names(
    """
    ABSL_PYTHON_PROFILE_FILE ABSL_RELOAD_DETECTOR HOME KERAS_BACKEND KERAS_HOME KERAS_NNX_ENABLED
    MATPLOTLIBRC MPLCONFIGDIR NPY_PROMOTION_STATE PILLOW_ALIGNMENT PILLOW_BLOCKS_MAX
    PILLOW_BLOCK_SIZE PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION PYPARSINGENABLEALLWARNINGS
    PY_SAX_PARSER TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK TF_ENABLE_CONTROL_FLOW_V2
    TF_FORWARD_COMPATIBILITY_DELTA_DAYS TF_FUNCTION_JIT_COMPILE_DEFAULT TF_JIT_COMPILE_REWRITE
    TF_NP_CHECK_LINK TF_NP_DOC_FORM TF_NP_SIG_MISMATCH_IS_ERROR TF_OPTIONALS_IN_GRADIENTS
    TF_PLUGGABLE_DEVICE_LIBRARY_PATH TF_USE_LEGACY_KERAS TF_XLA_SHARDING_FOR_RESOURCE_VARIABLES
    TRAITLETS_APPLICATION_RAISE_CONFIG_FILE_ERROR WRAPT_DISABLE_EXTENSIONS XDG_CACHE_HOME
    XDG_CONFIG_HOME XDG_DATA_HOME
    """
)
"""Variables that Python code reads when it is imported. A nursery reports further ones."""
AGAIN = _names(
    """
    GOTO_NUM_THREADS GRPC_FAIL_FAST KERAS_MAX_EPOCHS KERAS_MAX_STEPS_PER_EPOCH MPLBACKEND
    OMP_NUM_THREADS OPENBLAS_NUM_THREADS OPENBLAS_THREAD_TIMEOUT TEMP TF_CPP_MIN_LOG_LEVEL TMP
    TMPDIR TZ
    """
)
"""Variables that are read again for each program."""
HARMLESS = _names(
    """
    COLUMNS ENABLE_RUNTIME_UPTIME_TELEMETRY IN_SPHINX_RUN IPYTHON_TESTING_TIMEOUT_SCALE LINES
    OPENBLAS_MAIN_FREE PATH PSUTIL_DEBUG PSUTIL_TESTING TERM TEST_RANDOM_SEED TEST_SRCDIR
    TEST_TMPDIR
    """
)
"""Variables for finding programs, for terminals, for packages' own tests and documentation, or that
the import sets in any case."""
DEFAULTS = {
    "HDF5_PLUGIN_PATH": "disable",
    "KERAS_BACKEND": "tensorflow",
    "KMP_INIT_AT_FORK": "FALSE",
    "TF_USE_LEGACY_KERAS": "0",
}
"""Values that mean the same as an unset variable, or that imports set: a program may have these
from a parent that has imported TensorFlow."""


def counts_when_loaded(name: str) -> bool:
    """Whether packages read this variable for good when they are loaded."""
    if name in AGAIN or name in HARMLESS:
        return False
    return name in NATIVE or name in PYTHON or name.startswith(NATIVE_PREFIXES)
