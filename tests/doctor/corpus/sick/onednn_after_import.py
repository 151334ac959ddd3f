import tensorflow as tf
import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
from tensorflow.python.util import _pywrap_util_port

tf.ones([2])
assert not _pywrap_util_port.IsMklEnabled() or "oneDNN was loaded" == ""
