"""A tf.data pipeline that keeps decoded images in memory: map, cache, shuffle, batch, prefetch."""

import tensorflow as tf

tf.keras.utils.set_random_seed(7)


def decode(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Stands for reading a file: an image from its number."""
    image = tf.random.stateless_uniform((112, 112, 3), [seed, 7])
    return image, tf.reduce_mean(image) > 0.5


images = (
    tf.data.Dataset.range(900)
    .map(decode, num_parallel_calls=2)
    .cache()
    .shuffle(300, seed=7)
    .batch(32)
    .prefetch(2)
)
bright, seen = 0, 0
for _epoch in range(3):
    for batch, labels in images:
        small = tf.image.resize(batch, (56, 56))
        bright += int(tf.reduce_sum(tf.cast(labels, tf.int32)))
        seen += int(small.shape[0])
print(f"{bright} of {seen} bright")
