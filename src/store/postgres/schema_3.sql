-- SPDX-License-Identifier: Apache-2.0
-- From version 2 of the store in a database to version 3, made by `ejk store init` and
-- `ejk store upgrade`; docs/fleet.md explains it.
BEGIN;
SELECT pg_advisory_xact_lock(hashtext('ejk schema'));
SET LOCAL ROLE ejk_owner;
UPDATE ejk.meta SET version = 3;

-- What the ranks of a run agreed on: the config of a call that the first of them took. Ranks that
-- start again must find it, so it outlives a crash of the server.
CREATE TABLE ejk.pins (
  run text COLLATE "C" NOT NULL CHECK (octet_length(run) BETWEEN 1 AND 200),
  call_id bytea NOT NULL CHECK (octet_length(call_id) = 16),
  config text NOT NULL CHECK (octet_length(config) <= 1048576),
  author text NOT NULL,
  written_at timestamptz NOT NULL,
  PRIMARY KEY (run, call_id)
);
CREATE INDEX pins_by_age ON ejk.pins (written_at);

-- Pins what is not pinned yet (NULL: asks only), and gives what stands there then. All in one
-- order, so that two that pin the same calls do not wait for each other in a circle. The first of a
-- run removes what is older than any run gets.
CREATE FUNCTION ejk.pin(p_run text, p_calls bytea[], p_configs text[])
RETURNS TABLE (pinned_call bytea, pinned_config text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM ejk.pins WHERE run = p_run) THEN
    DELETE FROM ejk.pins WHERE (run, call_id) IN (
      SELECT run, call_id FROM ejk.pins WHERE written_at < now() - interval '1 year'
      ORDER BY written_at LIMIT 10000 FOR UPDATE SKIP LOCKED);
  END IF;
  INSERT INTO ejk.pins
  SELECT p_run, o.call, o.config, session_user, clock_timestamp()
  FROM unnest(p_calls, p_configs) AS o (call, config)
  WHERE o.config IS NOT NULL ORDER BY o.call
  ON CONFLICT (run, call_id) DO NOTHING;
  RETURN QUERY SELECT call_id, config FROM ejk.pins
  WHERE run = p_run AND call_id = ANY (p_calls);
END $$;

CREATE FUNCTION ejk.unpin(p_run text)
RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH gone AS (DELETE FROM ejk.pins WHERE run = p_run RETURNING 1) SELECT count(*) FROM gone;
$$;

REVOKE ALL ON FUNCTION ejk.pin, ejk.unpin FROM PUBLIC;
GRANT SELECT ON ejk.pins TO ejk_reader;
GRANT EXECUTE ON FUNCTION ejk.pin TO ejk_writer;
GRANT EXECUTE ON FUNCTION ejk.unpin TO ejk_admin;
COMMIT;
