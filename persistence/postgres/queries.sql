-- Every statement of the store but those of its migrations. `@schema@` stands for the quoted name of the schema.

-- :name find
-- What stands under an id.
select epoch, token, owner, extract(epoch from lease_until - clock_timestamp())::float8 as lease_left, next_seq, head,
    header, false as is_locked
from @schema@.sessions where id = $1

-- :name find_for_update
-- What stands under an id, kept as it is until the transaction ends.
select epoch, token, owner, extract(epoch from lease_until - clock_timestamp())::float8 as lease_left, next_seq, head,
    header, false as is_locked
from @schema@.sessions where id = $1 for update

-- :name append
-- Store one batch; nothing where the session's row is locked, or is not what the batch expects.
with advanced as (
    update @schema@.sessions s
    set next_seq = $6 + cardinality($15::text[]), head = $8, title = coalesce($11, s.title),
        last_write = floor(extract(epoch from clock_timestamp()) * 1000),
        lease_until = clock_timestamp() + make_interval(secs => $5)
    where s.id = $2 and (
        select true from @schema@.sessions f
        where f.id = $2 and f.epoch = $3 and f.token = $4
            and f.next_seq = $6 and f.head = $7 and f.header_digest = $9 and f.header is not null
            and current_setting('synchronous_commit') = any ($1::text[])
        for update skip locked
    )
    returning s.id, s.next_seq, s.last_write
)
insert into @schema@.events
select
    a.id, $6 + e.n - 1, e.time, e.type, e.ignorable, e.data,
    case when $6 + e.n = a.next_seq then $10::text end,
    case when $6 + e.n = a.next_seq then a.last_write end,
    case when $6 + e.n = a.next_seq then $8::bytea end
from advanced a, unnest($12::bigint[], $13::text[], $14::boolean[], $15::text[])
    with ordinality as e (time, type, ignorable, data, n)

-- :name append_together
-- The same for one batch each of several sessions; answers those stored. It waits for nobody's lock, so two of these
-- cannot deadlock.
with advanced as (
    update @schema@.sessions s
    set next_seq = g.next, head = g.digest, title = coalesce(g.title, s.title),
        last_write = floor(extract(epoch from clock_timestamp()) * 1000),
        lease_until = clock_timestamp() + make_interval(secs => g.lease_s)
    from unnest(
        $2::text[], $3::bigint[], $4::text[], $5::float8[], $6::bigint[], $7::bytea[], $8::bigint[], $9::bytea[],
        $10::bytea[], $11::text[], $12::text[]
    ) with ordinality as g (id, epoch, token, lease_s, first, previous, next, digest, header_digest, reason, title, n),
    lateral (
        select f.id from @schema@.sessions f
        where f.id = g.id and f.epoch = g.epoch and f.token = g.token
            and f.next_seq = g.first and f.head = g.previous and f.header_digest = g.header_digest
            and f.header is not null and current_setting('synchronous_commit') = any ($1::text[])
        for update skip locked
    ) free
    where s.id = free.id
    returning s.id, g.n, g.next, g.reason, g.digest, s.last_write
),
stored as (
    insert into @schema@.events
    select
        a.id, e.seq, e.time, e.type, e.ignorable, e.data,
        case when e.seq = a.next - 1 then a.reason end,
        case when e.seq = a.next - 1 then a.last_write end,
        case when e.seq = a.next - 1 then a.digest end
    from unnest($13::bigint[], $14::bigint[], $15::bigint[], $16::text[], $17::boolean[], $18::text[])
        as e (n, seq, time, type, ignorable, data)
    join advanced a on a.n = e.n
)
select id from advanced

-- :name settle
-- Store one batch, or say why not.
select * from @schema@.append_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)

-- :name claim
-- Make a new claim the session's.
update @schema@.sessions
set epoch = $2, token = $3, owner = $4, lease_until = clock_timestamp() + make_interval(secs => $5)
where id = $1

-- :name renew
-- Start the lease of a claim anew, and say what stands there; or that another transaction has the row.
with found as materialized (
    select id, epoch, token, owner, extract(epoch from lease_until - clock_timestamp())::float8 as lease_left,
        next_seq, head, header
    from @schema@.sessions where id = $1 for update skip locked
),
renewed as (
    update @schema@.sessions s set lease_until = clock_timestamp() + make_interval(secs => $4)
    from found f where s.id = f.id and f.epoch = $2 and f.token = $3 and f.header is not null
)
select f.epoch, f.token, f.owner, f.lease_left, f.next_seq, f.head, f.header, f.id is null as is_locked
from @schema@.sessions s left join found f on f.id = s.id where s.id = $1

-- :name release
-- End a claim, and say what stood there; or that another transaction has the row.
with found as materialized (
    select id, epoch, token, owner, extract(epoch from lease_until - clock_timestamp())::float8 as lease_left,
        next_seq, head, header
    from @schema@.sessions where id = $1 for update skip locked
),
released as (
    update @schema@.sessions s set token = null, owner = null, lease_until = clock_timestamp()
    from found f where s.id = f.id and f.epoch = $2 and f.token = $3 and f.header is not null
)
select f.epoch, f.token, f.owner, f.lease_left, f.next_seq, f.head, f.header, f.id is null as is_locked
from @schema@.sessions s left join found f on f.id = s.id where s.id = $1

-- :name read
-- The events of a session up to a seq.
select seq, time, type, ignorable, data, reason, written_at, digest
from @schema@.events where session_id = $1 and seq < $2 order by seq

-- :name read_from
-- A page of a session's events, or one row without an event when there are none; no row when there is no session.
select s.header is null as is_deleted, e.seq, e.time, e.type, e.ignorable, e.data
from @schema@.sessions s
left join lateral (
    select seq, time, type, ignorable, data
    from @schema@.events where session_id = s.id and seq >= $2 order by seq limit $3
) e on true
where s.id = $1 order by e.seq

-- :name list
-- A page of sessions after a position, newest first.
select id, header, created_at, next_seq, last_write, epoch, owner,
    extract(epoch from lease_until - clock_timestamp())::float8 as lease_left, title
from @schema@.sessions
where header is not null and (created_at, id) < ($2, $3)
order by created_at desc, id desc limit $1

-- :name list_from_the_newest
-- The first page of sessions, newest first.
select id, header, created_at, next_seq, last_write, epoch, owner,
    extract(epoch from lease_until - clock_timestamp())::float8 as lease_left, title
from @schema@.sessions
where header is not null
order by created_at desc, id desc limit $1

-- :name strays
-- Ids of which there are events and neither a session nor a tombstone, twenty at most.
select distinct e.session_id
from @schema@.events e where not exists (select from @schema@.sessions s where s.id = e.session_id) limit 20

-- :name bury
-- Leave of a session its tombstone.
update @schema@.sessions
set token = null, owner = null, lease_until = clock_timestamp(), title = null, header = null
where id = $1 and header is not null

-- :name drop_events
-- What is left of a buried session's log goes too.
delete from @schema@.events where session_id = $1

-- :name is_known
-- Whether there is a session or a tombstone under an id.
select exists (select from @schema@.sessions where id = $1)
