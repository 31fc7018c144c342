"""What single operations cost, each beside the machine's own limit, measured in the same run."""
