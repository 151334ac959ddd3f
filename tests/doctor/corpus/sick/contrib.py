import tensorflow as tf

cell = tf.contrib.rnn.BasicLSTMCell(32)
print(cell)
