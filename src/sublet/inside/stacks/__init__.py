"""Several Keras models of one architecture, trained as one.

    group ──▶ stack ──▶ checks, architecture  which models can be one, and why not
      │         ├─────▶ state                 variables with a model axis
      │         ├─────▶ numbers               hyper-parameters with a model axis
      │         ├─────▶ forward ──▶ forms     how each kind of layer computes all models
      │         └─────▶ losses, updates       losses, metrics and optimizers of all models
      ├─▶ alone                               Keras' own step, for one model
      └─▶ batches                             one pass over the data feeds all

A model in a stack is trained as it would be alone: same batches, same random numbers, same steps.
"""
