"""The rules of Waystation as pure code: values in, values and effects out.

Nothing here opens a socket, reads a clock, logs, or touches a file. Time comes in as `now`,
milliseconds since the epoch; randomness comes in as an argument. So whatever happened can be
replayed: by a test, by the pipeline, or by `waystation why`.
"""
