"""Everything that crosses a process border: structs, channels, configuration and errors."""

VERSION = "0.1.0"
