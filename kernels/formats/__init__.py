"""How a weight lies in memory: one file per format, all behind the protocols of `weight_format.py`."""
