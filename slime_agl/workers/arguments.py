"""Slime's arguments on their way to workers."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)


def portable_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Slime's arguments that another process can be given; what cannot be pickled stays behind."""
    portable = {}
    for name, value in arguments.items():
        try:
            pickle.dumps(value)
        except Exception as error:  # whatever a stranger's object raises
            logger.debug("workers are not given args.%s: %s", name, error)
        else:
            portable[name] = value
    return portable
