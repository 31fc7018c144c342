"""The endpoints, with their request bodies and replies."""
