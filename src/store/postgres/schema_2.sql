-- SPDX-License-Identifier: Apache-2.0
-- From version 1 of the store in a database to version 2, made by `ejk store init` and
-- `ejk store upgrade`; docs/fleet.md explains it.
BEGIN;
SELECT pg_advisory_xact_lock(hashtext('ejk schema'));
SET LOCAL ROLE ejk_owner;
UPDATE ejk.meta SET version = 2;

-- Calls that programs recorded, as documents without counts.
CREATE TABLE ejk.calls (
  call_id bytea PRIMARY KEY CHECK (octet_length(call_id) = 16),
  device text COLLATE "C" NOT NULL,
  op text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  record text NOT NULL CHECK (octet_length(record) <= 1048576),
  author text NOT NULL,
  written_at timestamptz NOT NULL
);
CREATE INDEX calls_of_a_device ON ejk.calls (device, call_id);

-- How often, as each folder of recorded calls counted them from its beginning: whoever sends that
-- again, or later than something newer, changes nothing.
CREATE TABLE ejk.call_counts (
  call_id bytea NOT NULL REFERENCES ejk.calls ON DELETE CASCADE,
  source bytea NOT NULL CHECK (octet_length(source) = 8),
  calls bigint NOT NULL CHECK (calls >= 0),
  timed_calls bigint NOT NULL CHECK (timed_calls >= 0),
  timed_seconds float8 NOT NULL CHECK (timed_seconds >= 0 AND timed_seconds < 'infinity'),
  first text COLLATE "C" NOT NULL CHECK (octet_length(first) <= 64),
  last text COLLATE "C" NOT NULL CHECK (octet_length(last) <= 64),
  author text NOT NULL,
  PRIMARY KEY (call_id, source)
);

-- All in one order, so that two that send the same calls do not wait for each other in a circle.
CREATE FUNCTION ejk.count_calls(
  p_source bytea, p_calls bytea[], p_devices text[], p_ops text[], p_keys text[],
  p_records text[], p_counts bigint[], p_timed bigint[], p_seconds float8[], p_first text[],
  p_last text[])
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO ejk.calls
  SELECT c.id, c.device, c.op, c.key, c.record, session_user, clock_timestamp()
  FROM unnest(p_calls, p_devices, p_ops, p_keys, p_records) AS c (id, device, op, key, record)
  ORDER BY c.id
  ON CONFLICT (call_id) DO NOTHING;
  INSERT INTO ejk.call_counts AS n
  SELECT c.id, p_source, c.calls, c.timed, c.seconds, c.first, c.last, session_user
  FROM unnest(p_calls, p_counts, p_timed, p_seconds, p_first, p_last)
    AS c (id, calls, timed, seconds, first, last)
  ORDER BY c.id
  ON CONFLICT (call_id, source) DO UPDATE SET
    calls = excluded.calls, timed_calls = excluded.timed_calls,
    timed_seconds = excluded.timed_seconds, first = excluded.first, last = excluded.last,
    author = excluded.author
  WHERE (excluded.calls, excluded.timed_calls) > (n.calls, n.timed_calls);
$$;

-- Snapshots, by the SHA-256 of their bytes; they never change.
CREATE TABLE ejk.snapshots (
  id bytea PRIMARY KEY CHECK (octet_length(id) = 32),
  content text NOT NULL CHECK (octet_length(content) <= 268435456),
  author text NOT NULL,
  published_at timestamptz NOT NULL
);

CREATE FUNCTION ejk.publish(p_content text)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  name bytea := sha256(convert_to(p_content, 'UTF8'));
BEGIN
  INSERT INTO ejk.snapshots VALUES (name, p_content, session_user, clock_timestamp())
  ON CONFLICT (id) DO NOTHING;
  RETURN encode(name, 'hex');
END $$;

REVOKE ALL ON FUNCTION ejk.count_calls, ejk.publish FROM PUBLIC;
GRANT SELECT ON ejk.calls, ejk.call_counts, ejk.snapshots TO ejk_reader;
GRANT SELECT (call_id, holder, since, expires) ON ejk.leases TO ejk_reader;  -- not the token
GRANT EXECUTE ON FUNCTION ejk.count_calls TO ejk_writer;
GRANT EXECUTE ON FUNCTION ejk.publish TO ejk_admin;
COMMIT;
