"""The metrics in `/metrics`: counted where events happen, collected at each scrape."""
