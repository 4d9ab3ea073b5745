-- START — one run under its key; the same key again finds the same run. Who answers says where.
select
  a.run_id,
  a.outcome,
  inet_server_port()
from ql_admission.start_run('load', :'kind', :'target', :'run_key', '{}') as a;
