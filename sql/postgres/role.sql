-- ROLES — run by a DBA with psql, once per cluster for the roles and once per database for the two
-- grants at the end; harmless when repeated. Everything after it is done by ql_migrator, who is no
-- superuser:  psql -d DATABASE -f sql/postgres/role.sql
-- Logins are the DBA's: make them as your rules ask, and `grant ql_worker to some_login`.
-- No passwords here. Roles: DESIGN §8.

\set ON_ERROR_STOP on
set client_min_messages = warning;

-- the roles that are not there yet
select format('create role %I %s', r.name, r.kind)
from (
  values
    ('ql_authority', 'nologin'),
    ('ql_migrator', 'login'),
    ('ql_admission', 'nologin'),
    ('ql_scheduler', 'nologin'),
    ('ql_worker', 'nologin'),
    ('ql_operator', 'nologin'),
    ('ql_reader', 'nologin'),
    ('ql_retention', 'nologin')
) as r (name, kind)
where not exists (select from pg_catalog.pg_roles as p where p.rolname = r.name)
\gexec

comment on role ql_authority is
  'qinglong: owns the capability functions; holds the table rights that they need, no login';
comment on role ql_migrator is
  'qinglong: owns schema, tables and views, and migrates them; no superuser';
comment on role ql_admission is 'qinglong: may publish, withdraw, start, request cancellation';
comment on role ql_scheduler is 'qinglong: may run the stages: pages, convergence, recovery';
comment on role ql_worker is 'qinglong: may lease, start, renew, report; nothing without a token';
comment on role ql_operator is 'qinglong: may declare work stopped, pause triggers, release faults';
comment on role ql_reader is 'qinglong: may select from the views, and write nothing';
comment on role ql_retention is
  'qinglong: owns the purge functions; deletes what is terminal and past retention, no login';

-- ql_migrator hands its functions over to these two, so it must be able to act as them
select current_setting('server_version_num')::int >= 160000 as grants_have_options
\gset
\if :grants_have_options
grant ql_authority, ql_retention to ql_migrator with inherit true, set true;
\else
grant ql_authority, ql_retention to ql_migrator;
\endif

-- In this database: room for the schemas, and an end for what a client left hanging. Steps are
-- short; migrations set their own limits.
select format('grant connect, create on database %I to ql_migrator', current_database())
union all
select format('alter database %I set %s = %L', current_database(), t.name, t.value)
from (
  values ('statement_timeout', '60s'), ('idle_in_transaction_session_timeout', '60s')
) as t (name, value)
\gexec
reset client_min_messages;
