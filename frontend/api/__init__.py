"""The endpoints, and what they take and answer."""
