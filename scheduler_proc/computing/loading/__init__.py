"""From a checkpoint on disk to a runner that is ready for its first step."""
