"""The errors a user meets: each names the thing, the place and the remedy, and carries an exit code."""

from __future__ import annotations


class SpliceError(Exception):
    """Something the user can mend: bad settings, bad input, a lost worker. Shown without a traceback.

    `exit_code`: 2 for settings and input that are refused before or during the work, 1 for work that failed.
    """

    exit_code = 2


class BuildFailed(SpliceError):
    """The work itself failed (a killed worker, a full disk); what is done is kept and a rerun goes on."""

    exit_code = 1


class Interrupted(SpliceError):
    """Ctrl-C: not a failure, but the exit code tells scripts that the work is not done."""

    exit_code = 130
