"""Batches that do not fit a lease, trained in micro-batches with the same result.

    install ──▶ steps ──▶ micro_batches  how many rows at a time: measured, and corrected
                      ──▶ micro_step     the gradients of a batch, one micro-batch after the other
                      ──▶ loss_parts     a micro-batch's part of the batch's loss
                      ──▶ checks         which models cannot be split, and why

Keras' own `fit`, `evaluate` and `predict` stay around all of it.
"""
