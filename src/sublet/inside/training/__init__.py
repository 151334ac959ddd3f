"""Batches that do not fit a lease, trained in micro-batches with the same result.

    fit ──▶ precision                    what layers compute in
        ──▶ resume                       checkpoints
        ──▶ replicas                     who computes which rows
        ──▶ install ──▶ steps ──▶ micro_batches  how many rows at a time: measured, and corrected
                              ──▶ micro_step     the gradients of a batch, part after part
                              ──▶ replica_step   the same, on several devices
                              ──▶ loss_parts     a micro-batch's part of the batch's loss
                              ──▶ checks         which models cannot be split, and why

Keras' own `fit`, `evaluate` and `predict` stay around all of it.
"""
