-- Every statement of the store but those of its migrations. `@schema@` stands for the quoted name of the schema.

-- :name find
-- What stands under an id.
select epoch, token, owner, extract(epoch from lease_until - clock_timestamp())::float8 as lease_left, next_seq, head, header
from @schema@.sessions where id = $1

-- :name find_for_update
-- What stands under an id, kept as it is until the transaction ends.
select epoch, token, owner, extract(epoch from lease_until - clock_timestamp())::float8 as lease_left, next_seq, head, header
from @schema@.sessions where id = $1 for update

-- :name append
-- Store one batch, or say why not.
select * from @schema@.append_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)

-- :name append_together
-- Store one batch each of several sessions; answers those stored. A row that is locked, or is not what its batch
-- expects, is passed over without waiting: so these statements wait for nobody, and two of them cannot deadlock.
with given as (
    select * from unnest(
        $2::text[], $3::bigint[], $4::text[], $5::float8[], $6::bigint[], $7::bytea[], $8::bigint[], $9::bytea[],
        $10::bytea[], $11::text[], $12::text[]
    ) with ordinality as g (id, epoch, token, lease_s, first, previous, next, digest, header_digest, reason, title, n)
),
free as materialized (
    select s.id from @schema@.sessions s where s.id = any ($2::text[]) order by s.id for update skip locked
),
advanced as (
    update @schema@.sessions s
    set next_seq = g.next, head = g.digest, title = coalesce(g.title, s.title),
        last_write = floor(extract(epoch from clock_timestamp()) * 1000),
        lease_until = clock_timestamp() + make_interval(secs => g.lease_s)
    from given g, free f
    where s.id = f.id and s.id = g.id and s.epoch = g.epoch and s.token = g.token
        and s.next_seq = g.first and s.head = g.previous and s.header_digest = g.header_digest and s.header is not null
        and current_setting('synchronous_commit') = any ($1::text[])
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

-- :name claim
-- Make a new claim the session's.
update @schema@.sessions
set epoch = $2, token = $3, owner = $4, lease_until = clock_timestamp() + make_interval(secs => $5)
where id = $1

-- :name renew
-- Start the lease of a claim anew, and say what stands there.
with found as materialized (
    select id, epoch, token, owner, extract(epoch from lease_until - clock_timestamp())::float8 as lease_left,
        next_seq, head, header
    from @schema@.sessions where id = $1 for update
),
renewed as (
    update @schema@.sessions s set lease_until = clock_timestamp() + make_interval(secs => $4)
    from found f where s.id = f.id and f.epoch = $2 and f.token = $3 and f.header is not null
)
select epoch, token, owner, lease_left, next_seq, head, header from found

-- :name release
-- End a claim, and say what stood there.
with found as materialized (
    select id, epoch, token, owner, extract(epoch from lease_until - clock_timestamp())::float8 as lease_left,
        next_seq, head, header
    from @schema@.sessions where id = $1 for update
),
released as (
    update @schema@.sessions s set token = null, owner = null, lease_until = clock_timestamp()
    from found f where s.id = f.id and f.epoch = $2 and f.token = $3 and f.header is not null
)
select epoch, token, owner, lease_left, next_seq, head, header from found

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
