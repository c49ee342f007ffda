# SPDX-License-Identifier: BSD-3-Clause
"""The keys of a target beside those of the snapshot: prefixes of wrappers, missing and unexpected keys, the report."""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from .._text.similar import listed, shown
from ..errors import InvalidError, NotFoundError

_COMPILED = "_orig_mod"
_WRAPPERS = {
    _COMPILED: "torch.compile",
    "module": "DistributedDataParallel or DataParallel",
    "_fsdp_wrapped_module": "FSDP",
    "_checkpoint_wrapped_module": "activation checkpointing",
}
"""Names that wrappers of modules put into keys."""


ROOT = "the state"
"""The path of the whole state, for errors."""


def below(path: str, key: Any) -> str:
    return str(key) if path == ROOT else f"{path}.{key}"


class Report:
    """The keys that ``load_into(strict=False)`` did not load, as dotted paths of the state."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.unexpected: list[str] = []

    def add(self, path: str, missing: Collection[Any], unexpected: Collection[Any]) -> None:
        self.missing += [below(path, key) for key in missing]
        self.unexpected += [below(path, key) for key in unexpected]


class Matched(NamedTuple):
    """The snapshot's key for each key of a target that has one; the keys of either that the other lacks."""

    stored: dict[Any, Any]
    missing: list[Any]
    unexpected: list[Any]


def match(own: Collection[Any], stored: Collection[Any], strict: bool) -> Matched:
    """Match equal keys, then those that differ only by names of wrappers: ``strict`` does so for all keys or none.

    A wrapper around all of one side is preferred if so more keys match, and all of a side: a module may have a part of
    its name.
    """
    equal = {key: key for key in own if key in stored}
    missing = [key for key in own if key not in equal]
    unexpected = [key for key in stored if key not in equal]
    if not missing or not unexpected:
        return Matched(equal, missing, unexpected)
    mine, others = _by_bare(own), _by_bare(stored)
    renamed = {}
    if mine is not None and others is not None:
        renamed = {key: others[_bare(key)] for key in missing if _bare(key) in others}
    whole = min(len(own), len(stored))
    found = max((equal | renamed, *(way for way in _unwrapped(own, stored) if len(way) == whole)), key=len)
    if strict and not len(found) == len(own) == len(stored):
        return Matched(equal, missing, unexpected)
    used = set(found.values())
    return Matched(found, [key for key in own if key not in found], [key for key in stored if key not in used])


def _unwrapped(own: Collection[Any], stored: Collection[Any]) -> Iterator[dict[Any, Any]]:
    """Match keys to those of a wrapper around all of the other side, for each wrapper and side."""
    texts = [key for key in own if type(key) is str]
    for name in _WRAPPERS:
        prefix = f"{name}."
        yield {key: prefix + key for key in texts if prefix + key in stored}
        yield {key: key[len(prefix) :] for key in texts if key.startswith(prefix) and key[len(prefix) :] in stored}


def _bare(key: Any) -> Any:
    """Return a key without the names of wrappers."""
    if type(key) is not str:
        return key
    return ".".join(part for part in key.split(".") if part not in _WRAPPERS)


def _by_bare(keys: Collection[Any]) -> dict[Any, Any] | None:
    """Return the keys by their bare ones; None: two have the same."""
    found = {_bare(key): key for key in keys}
    return found if len(found) == len(keys) else None


def renamed(source: dict[Any, Any], stored: dict[Any, Any], own: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a module's state with the module's keys, and the metadata of its parts; others keep theirs."""
    if all(key == name for key, name in stored.items()):
        return source
    names = {name: key for key, name in stored.items()}
    made = OrderedDict(
        (names.get(name, name), value) for name, value in source.items() if name in names or name not in stored
    )
    metadata, wanted = getattr(source, "_metadata", None), getattr(own, "_metadata", None)
    if isinstance(metadata, dict) and isinstance(wanted, dict):
        by_bare = {_bare(name): value for name, value in metadata.items()}  # of a wrapper and its inside: the inside
        kept = {name: by_bare[_bare(name)] for name in wanted if _bare(name) in by_bare}
        made._metadata = OrderedDict(kept)  # type: ignore[attr-defined]
    return made


def uncompiled(state: Any) -> Any:
    """Return a module's state without the names that ``torch.compile`` puts into the keys of its parts."""
    if not isinstance(state, dict) or not any(_COMPILED in key for key in state if type(key) is str):
        return state
    made = OrderedDict((_without_compiled(key), value) for key, value in state.items())
    if len(made) < len(state):  # two would have the same key
        return state
    metadata = getattr(state, "_metadata", None)
    if isinstance(metadata, dict):  # of a wrapper and its inside, which comes later: the inside
        kept = OrderedDict((_without_compiled(name), value) for name, value in metadata.items())
        made._metadata = kept  # type: ignore[attr-defined]
    return made


def _without_compiled(key: Any) -> Any:
    return ".".join(part for part in key.split(".") if part != _COMPILED) if type(key) is str else key


def refuse(path: str, target: str, matched: Matched) -> None:
    """Raise one error for missing and unexpected keys: NotFoundError with missing ones, else InvalidError."""
    if not matched.missing and not matched.unexpected:
        return
    texts = []
    if matched.missing:
        texts.append(f"the snapshot has no {listed(matched.missing)} for the {target}")
    if matched.unexpected:
        texts.append(f"the {target} has no {listed(matched.unexpected)}, which the snapshot has")
    text = f"{path}: {'; '.join(texts)}. {advice(matched)}"
    raise NotFoundError(text) if matched.missing else InvalidError(text)


def advice(matched: Matched) -> str:
    others = f"{len(matched.missing):,} missing, {len(matched.unexpected):,} unexpected"
    wrappers = sorted({part for key in (*matched.missing, *matched.unexpected) for part in _parts(key)})
    bare = {_bare(key) for key in matched.missing} & {_bare(key) for key in matched.unexpected}
    if wrappers and bare:
        names = " and ".join(f"{shown(name + '.')} (of {_WRAPPERS[name]})" for name in wrappers)
        return (
            f"Keys that differ only by {names} are matched if all keys match then; {len(bare):,} would ({others}). "
            "load_into(..., strict=False) loads the keys that match and returns the others"
        )
    prefix, count, owner = _prefix(matched)
    if count:
        return (
            f"{count:,} would match without the prefix {shown(prefix)} of the {owner}'s keys ({others}): load a state "
            "with the target's keys by load_state_dict"
        )
    return f"load_into(..., strict=False) loads the keys that match and returns the others ({others})"


def _parts(key: Any) -> list[str]:
    return [part for part in key.split(".") if part in _WRAPPERS] if type(key) is str else []


def _prefix(matched: Matched) -> tuple[str, int, str]:
    """Find the prefix that most keys of one side have more than keys of the other: it, their number, and the side."""
    found: Counter[tuple[str, str]] = Counter()
    missing, unexpected = ({key for key in keys if type(key) is str} for keys in matched[1:])
    for owner, longer, shorter in (("snapshot", unexpected, missing), ("target", missing, unexpected)):
        for key in longer:
            at = key.find(".")
            while at >= 0:
                if key[at + 1 :] in shorter:
                    found[key[: at + 1], owner] += 1
                at = key.find(".", at + 1)
    if not found:
        return "", 0, ""
    (prefix, owner), count = found.most_common(1)[0]
    return prefix, count, owner


def takes_strict(module: Any) -> bool:
    try:
        parameters = inspect.signature(module.load_state_dict).parameters
    except (TypeError, ValueError):
        return False
    return "strict" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
