"""The rules of images by family."""
