"""The formats of weight files: one file per format, all behind `TensorFile`."""
