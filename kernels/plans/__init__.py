"""Work lists of attention, planned on the host."""
