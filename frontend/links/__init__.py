"""The connections of this process: the ring, other frontends, the launcher, and the table of all processes."""
