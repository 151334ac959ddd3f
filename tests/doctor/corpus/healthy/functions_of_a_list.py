import tensorflow as tf

models = [tf.Variable(float(n)) for n in range(3)]
steps = []
for model in models:
    steps.append(tf.function(model.assign_add))
for step in steps:
    print(step(1.0))
