import tensorflow as tf

print "TensorFlow", tf.__version__
