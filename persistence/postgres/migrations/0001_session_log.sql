-- The session log.
--
-- A session is one row of `sessions` and its events are rows of `events`. What a checkpoint looks at and changes is the
-- session's row alone: who may write (epoch and token), where the log goes on (next_seq and head), until when the owner
-- keeps its place (lease_until). Because every append begins by updating that row under conditions, the row is the lock,
-- the fence and the compare-and-set in one, and no other lock is ever needed: no table lock, no advisory lock.
--
-- Nothing here is shared between sessions. The session's id leads every key, seqs are counted in the session's row, and
-- there is no sequence, so both tables can be hash-partitioned, or distributed over servers, by `sessions.id` and
-- `events.session_id`: a checkpoint then still touches one partition of each.
--
-- Ids are compared code point by code point: collation "C" on a database encoded as UTF8. Headers and event bodies are
-- the JSON text that was written, all ASCII, in `text` columns: jsonb would reorder keys, refuse NUL and lone surrogates,
-- and change numbers. Times of events and batches are milliseconds since the epoch, as in the log. Leases alone are
-- set and compared with this server's clock, read when the row is already locked (clock_timestamp), and no other.
--
-- A deleted session keeps its row without a header, for ever: the tombstone that answers late writers.
--
-- `@schema@` stands for the quoted name of the schema. Nothing relies on the search_path.

create table @schema@.sessions (
    id            text        collate "C" primary key,
    epoch         bigint      not null,
    token         text,                    -- with the epoch, the proof of the claim; null once it was released
    owner         text,
    lease_until   timestamptz not null,
    next_seq      bigint      not null,
    head          bytea       not null,    -- the digest of the last batch
    header_digest bytea       not null,    -- where the chain of digests starts; stands for the header in comparisons
    created_at    bigint      not null,
    last_write    bigint      not null,
    title         text,
    header        text                     -- null in a tombstone
) with (
    fillfactor = 70,                       -- room for the next version of a row on its own page: no index is touched
    autovacuum_vacuum_scale_factor = 0.02
);

-- Lists go newest first and leave tombstones out.
create index sessions_by_age on @schema@.sessions (created_at, id) where header is not null;

create table @schema@.events (
    session_id text    collate "C" not null,
    seq        bigint  not null,
    time       bigint  not null,
    type       text    not null,
    ignorable  boolean not null,
    data       text    not null,
    reason     text,                       -- these three on the last event of each batch
    written_at bigint,
    digest     bytea,
    primary key (session_id, seq)
);

-- One batch of one session, by the table of the contract: asked for first batches, for batches that were sent before, and
-- for what the plain statement would not store. A row that another transaction has locked is not waited for: the wait
-- would keep the connection from everybody else.
--
-- `p_header` is null unless the batch may create the session. `p_levels` are the values of synchronous_commit that are
-- good enough: a SET, a role or a database that weakens it cannot turn a checkpoint into a promise.
create function @schema@.append_batch(
    p_levels text[], p_id text, p_epoch bigint, p_token text, p_lease_s float8,
    p_first bigint, p_previous bytea, p_digest bytea, p_header_digest bytea, p_reason text, p_title text,
    p_times bigint[], p_types text[], p_ignorable boolean[], p_data text[],
    p_header text, p_created_at bigint, p_owner text,
    out outcome text, out stored_epoch bigint, out stored_next_seq bigint, out stored_head bytea,
    out is_committed boolean
)
language plpgsql as $function$
declare
    size  constant integer := cardinality(p_data);
    now   constant timestamptz := clock_timestamp();
    now_ms constant bigint := floor(extract(epoch from now) * 1000);
    kept record;
begin
    if current_setting('synchronous_commit') <> all (p_levels) then
        outcome := 'weak';
        return;
    end if;

    if p_header is not null then
        insert into @schema@.sessions
        values (
            p_id, p_epoch, p_token, p_owner, clock_timestamp() + make_interval(secs => p_lease_s),
            size, p_digest, p_header_digest, p_created_at, now_ms, p_title, p_header
        )
        on conflict (id) do nothing;
        outcome := case when found then 'created' end;
    end if;

    if outcome is null then
        select s.epoch, s.token, s.next_seq, s.head, s.header_digest, s.header is null as is_deleted
        into kept from @schema@.sessions s where s.id = p_id for update skip locked;
        if not found then
            outcome := case
                when exists (select from @schema@.sessions s where s.id = p_id) then 'locked' else 'missing'
            end;
            return;
        end if;
        stored_epoch := kept.epoch;
        stored_next_seq := kept.next_seq;
        stored_head := kept.head;
        is_committed := exists (
            select from @schema@.events e
            where e.session_id = p_id and e.seq = p_first + size - 1 and e.digest = p_digest
        );
        outcome := case
            when kept.is_deleted then 'deleted'
            when kept.epoch <> p_epoch or kept.token is distinct from p_token then
                case when p_header is null then 'fenced' else 'exists' end
            when kept.header_digest <> p_header_digest then 'header'
            when is_committed then 'repeated'
            when kept.next_seq = p_first and kept.head = p_previous then 'stored'
            else 'conflict'
        end;
    end if;

    if outcome = 'stored' then
        update @schema@.sessions s
        set next_seq = p_first + size, head = p_digest, title = coalesce(p_title, s.title),
            last_write = now_ms, lease_until = clock_timestamp() + make_interval(secs => p_lease_s)
        where s.id = p_id;
    elsif outcome = 'repeated' then
        -- A commit, so that a standby has to confirm it as well: merely seeing the rows would settle nothing.
        update @schema@.sessions s
        set lease_until = clock_timestamp() + make_interval(secs => p_lease_s) where s.id = p_id;
    end if;
    if outcome in ('created', 'stored') then
        insert into @schema@.events
        select
            p_id, p_first + e.n - 1, e.time, e.type, e.ignorable, e.data,
            case when e.n = size then p_reason end,
            case when e.n = size then now_ms end,
            case when e.n = size then p_digest end
        from unnest(p_times, p_types, p_ignorable, p_data) with ordinality e(time, type, ignorable, data, n);
    end if;
end
$function$;
