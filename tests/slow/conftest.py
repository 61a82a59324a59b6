"""The sweeps that several of the slow tests look at are run once."""

from support.launching import swept  # noqa: F401
