"""The live view of a server: sampled while a client watches, streamed, and shown in a browser."""
