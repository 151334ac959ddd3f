from tensorflow.examples.tutorials.mnist import input_data

digits = input_data.read_data_sets("/tmp/data/", one_hot=True)
print(digits.train.num_examples)
