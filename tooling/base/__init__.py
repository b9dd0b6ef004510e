"""The base of an image: a root file system from the distribution's packages, their versions locked."""
