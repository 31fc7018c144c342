"""What this process is connected to: the ring, other frontends, the launcher, and what it knows of all processes."""
