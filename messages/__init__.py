"""Everything that crosses a process border: structs, channels, configuration and errors."""
