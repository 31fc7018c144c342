"""One file per optional part of a step: its columns, its limit, and what blocks read of it."""
