"""Everything that processes exchange: message structs, channels, configuration and errors."""

VERSION = "0.1.0"
