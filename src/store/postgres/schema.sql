-- SPDX-License-Identifier: Apache-2.0
-- Version 1 of the store in a database, made by `ejk store init`; what is behind it brings it to
-- later ones. docs/fleet.md explains it.
-- One entry per call and environment; of two the one with the better evidence stays.
BEGIN;
SELECT pg_advisory_xact_lock(hashtext('ejk schema'));

-- Nobody logs in as these: they are granted to people and programs.
DO $$
DECLARE name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['ejk_owner', 'ejk_reader', 'ejk_writer', 'ejk_admin'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', name);
    END IF;
  END LOOP;
  GRANT ejk_reader TO ejk_writer;
  GRANT ejk_writer TO ejk_admin;
  IF NOT pg_has_role(current_user, 'ejk_owner', 'MEMBER') THEN
    EXECUTE format('GRANT ejk_owner TO %I', current_user);
  END IF;
END $$;

CREATE SCHEMA ejk AUTHORIZATION ejk_owner;
SET LOCAL ROLE ejk_owner;

CREATE TABLE ejk.meta (
  one bool PRIMARY KEY DEFAULT true CHECK (one),
  version int NOT NULL,     -- of this schema
  min_client int NOT NULL   -- the oldest schema whose clients may read this one
);
INSERT INTO ejk.meta (version, min_client) VALUES (1, 1);

-- JSON stays text: jsonb refuses NaN, lone surrogates and \u0000, which documents may have.
CREATE TABLE ejk.entries (
  call_id bytea NOT NULL CHECK (octet_length(call_id) = 16),
  env_id bytea NOT NULL CHECK (octet_length(env_id) = 16),
  device text COLLATE "C" NOT NULL,
  op text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  -- What decides between two, most important first; clients have the same order (better_evidence).
  measured bool NOT NULL,
  answers bool NOT NULL,
  complete bool NOT NULL,
  samples int NOT NULL,
  measured_at text COLLATE "C" NOT NULL,
  candidate_count int NOT NULL,
  digest bytea NOT NULL,
  document text NOT NULL CHECK (octet_length(document) <= 16777216),
  candidates text CHECK (octet_length(candidates) <= 16777216),
  revision bigint NOT NULL,
  author text NOT NULL,
  written_at timestamptz NOT NULL,
  PRIMARY KEY (call_id, env_id)
);
CREATE INDEX entries_of_an_op ON ejk.entries (device, op, key);
CREATE INDEX entries_by_op ON ejk.entries (op, call_id, env_id);
CREATE SEQUENCE ejk.revisions;

-- Lost with a crash of the server: a lease only saves work.
CREATE UNLOGGED TABLE ejk.leases (
  call_id bytea PRIMARY KEY,
  token text NOT NULL,
  holder text NOT NULL,
  since timestamptz NOT NULL,
  expires timestamptz NOT NULL  -- by the clock of the server
);

-- 'kept', 'stays' (something better is there) or 'changed' (p_revision is not what is there).
CREATE FUNCTION ejk.put(
  p_call bytea, p_env bytea, p_device text, p_op text, p_key text, p_measured bool, p_answers bool,
  p_complete bool, p_samples int, p_measured_at text, p_candidate_count int, p_digest bytea,
  p_document text, p_candidates text, p_revision bigint, p_replace bool, p_remove bytea[])
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF p_replace AND NOT pg_has_role(session_user, 'ejk_admin', 'MEMBER') THEN
    RAISE insufficient_privilege USING MESSAGE = 'only ejk_admin replaces entries';
  END IF;
  INSERT INTO ejk.entries AS e
  VALUES (p_call, p_env, p_device, p_op, p_key, p_measured, p_answers, p_complete, p_samples,
          p_measured_at, p_candidate_count, p_digest, p_document, p_candidates,
          nextval('ejk.revisions'), session_user, clock_timestamp())
  ON CONFLICT (call_id, env_id) DO UPDATE SET
    measured = excluded.measured, answers = excluded.answers, complete = excluded.complete,
    samples = excluded.samples, measured_at = excluded.measured_at,
    candidate_count = excluded.candidate_count, digest = excluded.digest,
    document = excluded.document, candidates = excluded.candidates,
    revision = excluded.revision, author = excluded.author, written_at = excluded.written_at
  WHERE e.revision = p_revision AND (p_replace OR
    (excluded.measured, excluded.answers, excluded.complete, excluded.samples,
     excluded.measured_at, excluded.candidate_count, excluded.digest)
    >= (e.measured, e.answers, e.complete, e.samples, e.measured_at, e.candidate_count, e.digest));
  IF FOUND THEN
    IF p_replace THEN
      DELETE FROM ejk.entries WHERE call_id = p_call AND env_id = ANY (p_remove) AND env_id <> p_env;
    END IF;
    RETURN 'kept';
  END IF;
  PERFORM FROM ejk.entries WHERE call_id = p_call AND env_id = p_env AND revision = p_revision;
  RETURN CASE WHEN FOUND THEN 'stays' ELSE 'changed' END;
END $$;

CREATE FUNCTION ejk.lease(p_call bytea, p_token text, p_seconds float8)
RETURNS bool LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  until timestamptz := clock_timestamp() + least(p_seconds, 3600) * interval '1 second';
BEGIN
  INSERT INTO ejk.leases AS l VALUES (p_call, p_token, session_user, clock_timestamp(), until)
  ON CONFLICT (call_id) DO UPDATE SET
    token = excluded.token, holder = excluded.holder, since = excluded.since,
    expires = excluded.expires
  WHERE l.expires < clock_timestamp() OR l.token = p_token;
  RETURN FOUND;
END $$;

CREATE FUNCTION ejk.renew(p_call bytea, p_token text, p_seconds float8)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE ejk.leases SET expires = clock_timestamp() + least(p_seconds, 3600) * interval '1 second'
  WHERE call_id = p_call AND token = p_token;
$$;

CREATE FUNCTION ejk.release(p_call bytea, p_token text)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM ejk.leases WHERE call_id = p_call AND token = p_token;
$$;

-- Those of the calls, and all of a key if one is given.
CREATE FUNCTION ejk.erase(p_calls bytea[], p_device text, p_op text, p_key text)
RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH gone AS (
    DELETE FROM ejk.entries WHERE call_id = ANY (p_calls)
      OR (device = p_device AND op = p_op AND key = p_key) RETURNING 1)
  SELECT count(*) FROM gone;
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ejk FROM PUBLIC;
GRANT USAGE ON SCHEMA ejk TO ejk_reader;
GRANT SELECT ON ejk.meta, ejk.entries TO ejk_reader;
GRANT EXECUTE ON FUNCTION ejk.put, ejk.lease, ejk.renew, ejk.release TO ejk_writer;
GRANT EXECUTE ON FUNCTION ejk.erase TO ejk_admin;
COMMIT;
