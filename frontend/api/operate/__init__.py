"""Endpoints for operators: health, metrics, requests, the cache, profiles, and commands."""
