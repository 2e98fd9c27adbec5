"""The Workq text protocol.

`requests` makes commands of a stream, with Workq's own checks and texts; `replies` writes the
answers byte for byte.
"""
