-- Start one run under its key; the same key again finds the same run. Who answers says where it is.
select
  a.run_id,
  a.outcome,
  coalesce(host(inet_server_addr()), 'local') as server
from ql_admission.start_run('drill', 'workflow', :'flow', :'run_key', '{}') as a;
