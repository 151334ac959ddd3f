"""Operations that TensorFlow itself does not have: libraries and packages that bring them.

What is named here is code that runs in the engine, so only the server's owner names it.
"""

import importlib
import os
import sys
import threading
from collections.abc import Iterable

from sublet.channel.codes import Code
from sublet.errors import ServingError

_PACKAGES = {
    # How the operations of a package begin.
    "Addons>": "tensorflow_addons",
    "CaseFoldUTF8": "tensorflow_text",
    "FastBert": "tensorflow_text",
    "FastWordpiece": "tensorflow_text",
    "IO>": "tensorflow_io",
    "NormalizeUTF8": "tensorflow_text",
    "RegexSplitWithOffsets": "tensorflow_text",
    "Sentencepiece": "tensorflow_text",
    "SimpleML": "tensorflow_decision_forests",
    "TFText>": "tensorflow_text",
    "UnicodeScriptTokenize": "tensorflow_text",
    "WhitespaceTokenize": "tensorflow_text",
    "WordpieceTokenize": "tensorflow_text",
}
_loading = threading.Lock()
_loaded: set[str] = set()


def package_of(operation: str) -> str:
    """The package that has an operation; empty if it is not known."""
    return next((name for begin, name in _PACKAGES.items() if operation.startswith(begin)), "")


def load(names: Iterable[str]) -> None:
    """Load each library (a path) or package (a name), once."""
    with _loading:
        for name in names:
            if name in _loaded:
                continue
            try:
                if os.sep in name:
                    import tensorflow as tf

                    tf.load_op_library(name)
                else:
                    importlib.import_module(name)
            except Exception as wrong:  # Code of others: it may raise anything.
                raise ServingError(
                    f"--load_library {name}: {wrong}. Install it for {sys.executable}, in a "
                    "version for this TensorFlow.",
                    Code.FAILED_PRECONDITION,
                ) from wrong
            _loaded.add(name)
