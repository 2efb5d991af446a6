"""Runs a program whose errors go to a terminal. Standard library only."""
import os
import pty
import subprocess


def shown_on_terminal(command):
    """The exit status, and what the program wrote to standard error, as bytes."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return process.wait(), shown
