"""What every test starts from."""

import logging

import pytest


@pytest.fixture(autouse=True)
def notes_are_heard() -> None:
    """The command line, where a test has run it in this process, has silenced what is noted of a trace."""
    logging.getLogger("harness").setLevel(logging.NOTSET)
