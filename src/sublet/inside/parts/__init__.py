"""A Keras model in parts, each on a device of its own, trained as a pipeline of micro-batches.

    split ──▶ calls           the graph of a model: calls of layers, in order
          ──▶ needs, cuts     what each call takes of memory, and where the parts are even
          ──▶ devices         which there are, and what they hold
          ──▶ placement       the weights of a part go to its device
          ──▶ trial           a few rows are computed as one and apart, and compared
          ──▶ pipeline_model  a Keras model whose steps are a pipeline
                └─▶ pipeline, part

Keras' own `fit`, `evaluate` and `predict` stay around all of it.
"""
