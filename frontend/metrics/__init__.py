"""What `/metrics` shows: counted where it happens, collected when it is asked for."""
