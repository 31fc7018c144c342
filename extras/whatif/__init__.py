"""What a server would do under other settings: the real scheduler, recorded arrivals, and a cost model of its steps."""
