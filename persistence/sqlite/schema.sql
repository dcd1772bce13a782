-- Version 1, whole. One file holds every session: a row each, and their events.

-- Whose file this is ("bfhd"), and which version of the schema
PRAGMA application_id = 1650878564;
PRAGMA user_version = 1;

-- The machine's clock in milliseconds since the epoch. Leases are set and compared with it, inside the database
CREATE VIEW clock AS SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) AS now;

-- What a checkpoint has to look at and change lies in one small row. The header comes last: when it is long, the columns
-- before it are still read and written without it. It is NULL in a tombstone, which stays for ever
CREATE TABLE sessions (
    key         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    epoch       INTEGER NOT NULL,
    token       TEXT,               -- with the epoch, the proof of the claim; NULL once it was released
    owner       TEXT,
    boot_id     TEXT,               -- the owner's process, when it runs on this machine:
    pid         INTEGER,            -- a claim of a process that has ended need not be waited for
    started     INTEGER,
    lease_until INTEGER NOT NULL,
    next_seq    INTEGER NOT NULL,
    head        BLOB    NOT NULL,   -- the digest of the last batch
    created_at  INTEGER NOT NULL,
    last_write  INTEGER NOT NULL,
    title       TEXT,
    header      TEXT
) STRICT;

-- Lists go newest first and leave tombstones out
CREATE INDEX sessions_by_age ON sessions (created_at, id) WHERE header IS NOT NULL;

-- One integer places an event: the session's key, then the seq in the lower 32 bits. So a session's events lie side by
-- side in one tree, and an event of a few kilobytes stays whole in its leaf, which it would not in a WITHOUT ROWID table
CREATE TABLE events (
    place      INTEGER PRIMARY KEY,
    type       TEXT    NOT NULL,
    time       INTEGER NOT NULL,
    ignorable  INTEGER NOT NULL,
    data       TEXT    NOT NULL,
    reason     TEXT,                -- these three on the last event of each batch
    written_at INTEGER,
    digest     BLOB,
    session    INTEGER GENERATED ALWAYS AS (place >> 32) VIRTUAL,
    seq        INTEGER GENERATED ALWAYS AS (place & 4294967295) VIRTUAL
) STRICT;
