"""Messages of the ring: requests, steps, replies."""
