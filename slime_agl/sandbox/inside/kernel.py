"""System calls that the standard library lacks."""

from __future__ import annotations

import os
import struct
import sys
from typing import Any

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER = 4, 38, 22, 36
OPENAT2, RESOLVE_IN_ROOT = 437, 0x10
LINUX = sys.platform == "linux"


def system_call(number: int, *arguments: Any) -> int:
    """Make a system call.

    Raises:
        OSError: as the kernel answers.
    """
    import ctypes  # costs milliseconds, and not every keeper needs it

    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(ctypes.c_long(number), *arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def control_process(option: int, value: int, pointer: bytes | None = None) -> None:
    """prctl. Raises OSError."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), pointer, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def filter_calls(program: bytes) -> None:
    """Put this process and its children under a seccomp filter. program: BPF instructions."""
    import ctypes

    code = ctypes.create_string_buffer(program)
    control_process(PR_SET_NO_NEW_PRIVS, 1)
    control_process(PR_SET_SECCOMP, 2, struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
