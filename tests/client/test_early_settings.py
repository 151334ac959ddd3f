"""What a script sets before its imports, as far as its text tells."""

import pytest

from sublet.client.early_settings import differing

ENVIRON = {"TF_ENABLE_ONEDNN_OPTS": "0", "HOME": "/home/somebody"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import tensorflow",
        "os.environ['KERAS_BACKEND'] = 'tensorflow'",
        'os.environ.setdefault("KERAS_BACKEND", "tensorflow")',
        "os.environ.update({'KERAS_BACKEND': 'tensorflow'})",
        "os.environ.update(KERAS_BACKEND='tensorflow')",
        "os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'",
        "# KERAS_BACKEND is jax",
        "'''KERAS_BACKEND=jax python train.py'''",
        "print('set KERAS_BACKEND to jax')",
        "if os.environ.get('KERAS_BACKEND') == 'jax': pass",
        "if 'KERAS_BACKEND' in os.environ: os.environ['KERAS_BACKEND']",
        "os.getenv('KERAS_BACKEND', 'jax')",
        "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'",
        "os.environ['OMP_NUM_THREADS'] = '1'",
        "os.environ['KERAS_MAX_EPOCHS'] = '1'",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '-1'",
        "os.environ['TF_FORCE_GPU_ALLOW_GROWTH'] = 'true'",
        "print('HOME', os.environ['HOME'])",
        "KERAS_BACKEND = 1 +",
    ],
)
def test_what_makes_no_difference_is_no_reason(text: str) -> None:
    """Reading, mentioning, and setting what is so anyway or can be set later."""
    assert differing(text.encode(), ENVIRON) == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("os.environ['KERAS_BACKEND'] = 'jax'", "KERAS_BACKEND"),
        ("os.environ['KERAS_BACKEND'] = backend", "KERAS_BACKEND"),
        ("os.environ.update(KERAS_BACKEND='torch')", "KERAS_BACKEND"),
        ("os.environ |= {'KERAS_BACKEND': 'torch'}", "KERAS_BACKEND"),
        ("os.putenv('TF_USE_LEGACY_KERAS', '1')", "TF_USE_LEGACY_KERAS"),
        ("os.environ['TF_ENABLE_ONEDNN_OPTS'] = '1'", "TF_ENABLE_ONEDNN_OPTS"),
        ("os.environ.pop('TF_ENABLE_ONEDNN_OPTS')", "TF_ENABLE_ONEDNN_OPTS"),
        ("del os.environ['TF_ENABLE_ONEDNN_OPTS']", "TF_ENABLE_ONEDNN_OPTS"),
        ("for n in ('KERAS_HOME',): os.environ[n] = '.'", "KERAS_HOME"),
        ("name = 'MALLOC_ARENA_MAX'; os.environ[name] = '1'", "MALLOC_ARENA_MAX"),
        ("if a:\n  def f():\n    os.environ['LD_PRELOAD'] = 'x'", "LD_PRELOAD"),
    ],
)
def test_another_value_or_one_that_cannot_be_seen_is_a_reason(text: str, name: str) -> None:
    assert differing(text.encode(), ENVIRON) == name


def test_a_script_that_is_no_utf8_is_read_as_python_reads_it() -> None:
    text = "# coding: latin-1\nos.environ['KERAS_BACKEND'] = 'jax' # gr\xfcn"
    assert differing(text.encode("latin-1"), {}) == "KERAS_BACKEND"
