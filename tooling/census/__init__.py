"""The census: which device code the files of an image carry, and whether it is what a stack needs."""
