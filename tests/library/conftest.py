"""Run folders written by hand, for the tests of this folder."""

from report.run_folders import make_run as make_run
