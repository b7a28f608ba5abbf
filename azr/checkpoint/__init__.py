"""The whole state of a run on disk: written aside, committed by one rename, found again and checked."""
