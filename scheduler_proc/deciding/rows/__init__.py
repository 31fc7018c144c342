"""The rows of a step: their columns, what they sample, and how they end."""
