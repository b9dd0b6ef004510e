"""What holds for all tests."""

import signal

from hypothesis import settings

# A busy machine is no fault of the code: no test here is timed, and Hypothesis times each of its examples.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell starts its background jobs with SIGINT ignored, which programs that the tests interrupt would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
