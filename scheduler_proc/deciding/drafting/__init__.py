"""Draft tokens: who proposes them, how many, and how many were right."""
