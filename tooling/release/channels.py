"""Channels (`candidate`, `stable`): tags that move, each move an entry of a signed log.

The log is kept in the registry beside the releases: entry N of a channel has the tag `channel-<name>-<N>`,
eight digits, which never moves and is the lock between two movers. The entries are chained by hash, so none
can be taken out of the middle or changed. Who can write to the registry can still hide the newest entries
together with moving the tag back; a host that remembers the last sequence number it saw finds that too
(`seen`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.attest.statement import Statement
from tooling.errors import BusyError, InputError
from tooling.records import Record
from tooling.registry.attach import attach_manifests
from tooling.registry.errors import TagConflictError
from tooling.release.errors import ContradictionError, MissingRecordError, MovedTagError
from tooling.release.evidence import upload_bundle
from tooling.release.names import parse_release_name
from tooling.release.records import ChannelEntry, Status
from tooling.release.verify import verify
from tooling.sign.bundle import sign
from tooling.sign.bundle import verify as verify_bundle

if TYPE_CHECKING:
    from datetime import datetime

    from tooling.registry.repository import Repository
    from tooling.release.evidence import Source
    from tooling.release.verify import Verification
    from tooling.sign.keys import SigningKey, Trust

#: The channels, and the least status that a release needs to get there.
CHANNELS = {"candidate": Status.SOURCE_QUALIFIED, "stable": Status.QUALIFIED}
_ORDER = (Status.UNTESTED, Status.SOURCE_QUALIFIED, Status.QUALIFIED)


class LoggedEntry(Record):
    """An entry whose signature and place in the chain were checked.

    Attributes:
        entry: What it says.
        digest: The image that the channel pointed to from then on.
        payload_sha256: Hash of the signed bytes.
        key_id: Who moved the channel.
    """

    entry: ChannelEntry
    digest: str
    payload_sha256: str
    key_id: str


def _log_tag(channel: str, sequence: int) -> str:
    return f"channel-{channel}-{sequence:08d}"


def check_channel(channel: str) -> Status:
    """The least status for a channel.

    Raises:
        InputError: There is no such channel.
    """
    if channel not in CHANNELS:
        raise InputError(f"there is no channel {channel!r}", fix=f"use one of {', '.join(CHANNELS)}")
    return CHANNELS[channel]


def read_log(source: Source, channel: str, trust: Trust) -> tuple[LoggedEntry, ...]:
    """Read and check the whole log of a channel; empty when it was never moved.

    Raises:
        MissingRecordError: An entry is gone.
        ContradictionError: An entry is not what its place says.
        SignatureError: An entry was changed, or is signed by a stranger.
    """
    pattern = re.compile(rf"channel-{re.escape(channel)}-(\d{{8}})")
    numbers = sorted(int(match[1]) for tag in source.tags() if (match := pattern.fullmatch(tag)))
    log: list[LoggedEntry] = []
    for sequence in range(1, (numbers[-1] if numbers else 0) + 1):
        if sequence not in numbers:
            raise MissingRecordError(
                f"entry {sequence} of channel {channel} is gone",
                where=source.name,
                fix="somebody removed it: find out who before you trust the channel",
            )
        manifest = source.manifest(_log_tag(channel, sequence))
        if len(manifest.layers) != 1:
            raise ContradictionError(f"entry {sequence} of channel {channel} is no record", where=source.name)
        signed = verify_bundle(source.blob(manifest.layers[0]), trust)
        entry = signed.statement.read(ChannelEntry)
        before = log[-1].payload_sha256 if log else None
        if (entry.channel, entry.sequence, entry.previous_sha256) != (channel, sequence, before):
            raise ContradictionError(
                f"entry {sequence} of channel {channel} belongs elsewhere",
                where=source.name,
                details=[f"it says: entry {entry.sequence} of {entry.channel}"],
                fix="do not trust the channel; deploy by digest",
            )
        log.append(
            LoggedEntry(
                entry=entry,
                digest=signed.statement.digest,
                payload_sha256=signed.payload_sha256,
                key_id=signed.key_id,
            )
        )
    return tuple(log)


def resolve(source: Source, channel: str, trust: Trust, *, seen: int = 0) -> LoggedEntry:
    """What a channel points to, by its log; the tag must agree.

    Args:
        source: Holds the releases.
        channel: Name of the channel.
        trust: Whose signatures are believed.
        seen: Highest sequence number that was seen before; a shorter log was cut.

    Raises:
        MissingRecordError: The channel was never moved, or its log is shorter than it was.
        MovedTagError: The tag points elsewhere.
    """
    check_channel(channel)
    log = read_log(source, channel, trust)
    if len(log) < max(seen, 1):
        raise MissingRecordError(
            f"the log of channel {channel} ends at {len(log)}, {max(seen, 1)} expected",
            where=source.name,
            fix="move the channel with `promote` first" if not seen else "do not trust the registry",
        )
    newest = log[-1]
    digest = source.manifest(channel).digest
    if digest != newest.digest:
        raise MovedTagError(
            f"tag {channel} does not point to what its signed log says",
            where=f"{source.name}:{channel}",
            details=[f"tag: {digest}", f"log: {newest.digest} ({newest.entry.release})"],
            fix="deploy by digest; run `promote` again if a move was interrupted",
        )
    return newest


def promote(
    repository: Repository,
    channel: str,
    release_tag: str,
    *,
    key: SigningKey,
    trust: Trust,
    now: datetime,
    reason: str = "",
) -> LoggedEntry:
    """Move a channel to a release, forwards or back; moving it where it is completes an interrupted move.

    Args:
        repository: Holds the releases.
        channel: Name of the channel.
        release_tag: Name of the release.
        key: Signs the entry.
        trust: Whose signatures are believed.
        now: The present.
        reason: Why, for the log.

    Raises:
        InputError: No such channel, or no release name.
        ContradictionError: The release is not proved far enough for this channel.
        BusyError: Somebody else moved the channel at the same time.
    """
    least = check_channel(channel)
    if parse_release_name(release_tag) is None:
        raise InputError(f"{release_tag!r} is no name of a release", fix="see `releases`")
    found = verify(repository, release_tag, trust, now=now)
    if _ORDER.index(found.status) < _ORDER.index(least):
        raise ContradictionError(
            f"{release_tag} is {found.status.value}, channel {channel} needs {least.value}",
            where=repository.name,
            fix="bring the missing evidence and release again",
        )
    log = read_log(repository, channel, trust)
    if not log or log[-1].entry.release != release_tag:
        log = (*log, _append(repository, channel, found, log, key=key, trust=trust, now=now, reason=reason))
    # Two movers may both believe that their entry was written; what the log holds now decides for both.
    newest = read_log(repository, channel, trust)[-1]
    repository.put_manifest(repository.manifest(newest.digest), channel)
    if resolve(repository, channel, trust, seen=len(log)) != log[-1]:
        raise _overtaken(repository, channel)
    return log[-1]


def _overtaken(repository: Repository, channel: str) -> BusyError:
    return BusyError(
        f"somebody else moved channel {channel} at the same time",
        where=repository.name,
        fix="look what it points to now, then run the command again",
    )


def _append(
    repository: Repository,
    channel: str,
    found: Verification,
    log: tuple[LoggedEntry, ...],
    *,
    key: SigningKey,
    trust: Trust,
    now: datetime,
    reason: str,
) -> LoggedEntry:
    entry = ChannelEntry(
        channel=channel,
        sequence=len(log) + 1,
        release=found.release.name,
        previous_sha256=log[-1].payload_sha256 if log else None,
        created=now.isoformat(timespec="seconds"),
        reason=reason,
    )
    signed = verify_bundle(sign(Statement.about(repository.name, found.digest, entry), key), trust)
    image = repository.manifest(found.digest)
    record = upload_bundle(repository, image, signed)
    try:
        repository.tag_once(record, _log_tag(channel, entry.sequence))
    except TagConflictError as error:
        raise _overtaken(repository, channel) from error
    attach_manifests(repository, found.digest, [record])
    return LoggedEntry(
        entry=entry, digest=found.digest, payload_sha256=signed.payload_sha256, key_id=signed.key_id
    )
