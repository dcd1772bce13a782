"""Sessions into their files: each function decides under the file's lock, and then adds to it once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from app.session.batch import Batch, Header
from app.session.errors import CorruptLog, SessionNotFound, UnsupportedFormat
from app.session.ownership import Epoch, Owner
from app.session.persistence import Repair, StoredLog
from persistence import rules
from persistence.jsonl import disk
from persistence.jsonl.directory import Directory
from persistence.jsonl.file import LogFile
from persistence.jsonl.lines import Claim, batch_lines, tombstone_line
from persistence.jsonl.looking import Seen, State, look, now_ms
from persistence.jsonl.reading import read_log, stored_log


def append(directory: Directory, header: Header, batch: Batch, epoch: Epoch) -> None:
    """Store a batch by the contract's table."""
    for creates in (False, True):
        with directory.locked(header.id, exclusive=True, create=creates) as file:
            seen = look(header.id, file)
            outcome = rules.decide(found(seen), header, batch, epoch, digests(header.id, file, seen))
            if file is None:
                # fp: jsonl.no_file
                continue  # the batch creates the session: make the file, and look again under its lock
            if outcome == "create":
                _create(file, header, batch, epoch)
                return
            assert isinstance(seen, State)  # the rules have looked
            if outcome == "repeated":
                file.add(seen.claim.by(epoch, now_ms(), seen.end_at).line(seen.key), seen.size)
            else:
                places = seen.size, seen.claim_at, seen.end.title_at
                file.add(batch_lines(batch, epoch, now_ms(), *places, seen.key), seen.size)
            return


def acquire(
    directory: Directory, session_id: str, owner: Owner, *, force: bool, repair: Repair | None
) -> tuple[Epoch, StoredLog]:
    """Read the log and, in one write, add the new claim and the batch that closes it."""
    with directory.locked(session_id, exclusive=True) as file:
        seen = look(session_id, file)
        rules.check_takeable(found(seen), session_id, force=force)
        assert isinstance(seen, State)  # the rules have looked
        assert file is not None
        log = read_log(session_id, file, seen)
        state = State.of(log)
        row, stored = state.row(), stored_log(log, state)
        epoch = Epoch.after(row.epoch, owner)
        batch = None if repair is None else repair(stored, epoch)
        rules.check_repair(batch, row)
        now = now_ms()
        data = state.claim.by(epoch, now, state.end_at).line(state.key)
        if batch is not None:
            places = state.size + len(data), state.size, state.end.title_at
            data += batch_lines(batch, epoch, now, *places, state.key)
        file.add(data, state.size, new=True)  # who created it may have died before its name was durable
        return epoch, stored


def renew(directory: Directory, session_id: str, epoch: Epoch) -> None:
    """Start the lease anew."""
    _claim(directory, session_id, epoch, lambda state: state.claim.by(epoch, now_ms(), state.end_at))


def release(directory: Directory, session_id: str, epoch: Epoch) -> None:
    """End the claim."""
    _claim(directory, session_id, epoch, lambda state: state.claim.released(now_ms(), state.end_at))


def delete(directory: Directory, session_id: str) -> None:
    """Put a tombstone in the place of the file. A damaged session can be deleted too."""
    with directory.locked(session_id, exclusive=True) as file:
        seen: Seen | Literal["damaged"]
        try:
            seen = look(session_id, file)
        except (CorruptLog, UnsupportedFormat):
            seen = "damaged"
        if file is None or seen is None:
            raise SessionNotFound(session_id)
        if seen != "deleted":
            directory.replace(file, tombstone_line(session_id, now_ms()))
        disk.sync_names(file.directory)  # again when it is there already: who put it there may have died before this


def found(seen: Seen) -> rules.Found:
    """What the rules decide by. Raises CorruptLog for a session that is damaged."""
    return seen.row() if isinstance(seen, State) else seen


def digests(session_id: str, file: LogFile | None, seen: Seen) -> Callable[[int], bytes | None]:
    """What tells the digest of the batch that ends with a seq."""

    def digest_at(seq: int) -> bytes | None:
        assert isinstance(seen, State)  # the rules ask only of what is there
        assert file is not None
        if seq == seen.end.seq:
            return seen.end.digest
        return next((end.digest for end in read_log(session_id, file, seen).ends if end.seq == seq), None)

    return digest_at


def _create(file: LogFile, header: Header, batch: Batch, epoch: Epoch) -> None:
    now, key = now_ms(), header.digest
    data = header.text.encode("ascii") + b"\n"
    claim_at = len(data)
    data += Claim.of(header.id, header.created_at, epoch, now, 0).line(key)
    file.add(data + batch_lines(batch, epoch, now, len(data), claim_at, 0, key), 0, new=True)


def _claim(directory: Directory, session_id: str, epoch: Epoch, claim: Callable[[State], Claim]) -> None:
    with directory.locked(session_id, exclusive=True) as file:
        seen = look(session_id, file)
        rules.check_claim(found(seen), session_id, epoch)
        assert isinstance(seen, State)  # the rules have looked
        assert file is not None
        file.add(claim(seen).line(seen.key), seen.size)
