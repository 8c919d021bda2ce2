"""The errors a user meets: each names the thing, the place and the remedy, and carries an exit code."""

from __future__ import annotations

RESUME = "What is done is kept: run the same command again and it goes on from there."

RESUME_TRAINING = "The same command with --resume goes on from the last checkpoint, if there is one."

RESUME_EVALUATION = "What was asked is kept: the same command goes on with the next group."


class SpliceError(Exception):
    """Something the user can mend: bad settings, bad input, a lost worker. Shown without a traceback.

    `exit_code`: 2 for settings and input that are refused before or during the work, 1 for work that failed.
    """

    exit_code = 2


class BuildFailed(SpliceError):
    """The work itself failed (a killed worker, a full disk); what is done is kept and a rerun goes on."""

    exit_code = 1


class StoreFailed(BuildFailed):
    """A store or a disk did not give or take a file, or gave a damaged one.

    Of a task this is told with its name and host, since others may fare better.
    """


class TrainingFailed(SpliceError):
    """Training cannot go on (a loss that is no number, a full disk); the last checkpoint is kept."""

    exit_code = 1


class EvaluationFailed(SpliceError):
    """An evaluation cannot go on (memory, a full disk, no prompt that fits); the samples so far are kept."""

    exit_code = 1


class Interrupted(SpliceError):
    """Ctrl-C: not a failure, but the exit code tells scripts that the work is not done."""

    exit_code = 130


def worker_died(stage: str, how: object = "") -> str:
    """What a user is told of a worker that ended without a word of its own."""
    known = f": {how}" if how else ""
    return f"a worker process of stage {stage} died (killed by hand, or by the kernel when memory ran out){known}.\n{RESUME}"
