"""Where pickles that were made before ``gpuhash.unpickle`` was public look for it."""

from __future__ import annotations

from .files.saved import unpickle

_unpickle = unpickle
