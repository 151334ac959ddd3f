import tensorflow as tf


@tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
def square(number):
    return number * number


for number in range(5):
    print(square(number))
