"""Measurements of the kernels in `images/kernels`: the run on a GPU, and the record of what it showed."""
