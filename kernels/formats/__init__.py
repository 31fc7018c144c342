"""The memory formats of weights: one file per format, all behind the protocols of `weight_format.py`."""
