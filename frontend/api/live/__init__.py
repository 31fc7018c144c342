"""The live view of the server: what it shows, how it is sampled, and its stream."""
