"""The gRPC front end: HTTP/2, gRPC on top of it, and the services that clients call.

    frames, huffman, hpack      the bytes of HTTP/2
    connection, sending         one client's connection: its streams and their flow control
    calls                       gRPC: requests, deadlines, messages, how a call ends
    prediction, models, health, inference       the services
    server                      listens, and drains

No other gRPC library is used; docs/design says why.
"""
