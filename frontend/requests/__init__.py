"""A request from its arrival to its final reply: admitted, registered, held back, ended at its deadline."""
