"""The gRPC front end: HTTP/2, gRPC on top of it, and the services that clients call.

    frames, hpack               the bytes of HTTP/2
    reading, sending            what comes in frames, and what goes within windows
    connection, conversation    one client: its transport; settings, streams, flow control, faults
    calls, incoming, streams    gRPC: the form of requests and answers; one call
    tfserving, oip, health      the services
    server                      what its connections share

No other gRPC library is used; docs/design says why.
"""
