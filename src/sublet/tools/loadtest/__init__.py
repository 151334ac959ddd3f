"""How fast a model answers, and with which batches it answers fastest.

inputs → way (channel, REST, gRPC) → Load (calls in flight) → windows → Figures → tables, SVG
                                                                 ↓
                                  Setting → trials → search → verdict → batching_params.pbtxt
"""
