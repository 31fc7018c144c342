"""A request from arrival to final reply: admission, registration, hold, deadline and timeline."""
