"""What holds for all tests."""

from hypothesis import settings

# A busy machine is no fault of the code: no test here is timed, and Hypothesis times each of its examples.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
